"""The tables that stories are put together from."""

# What each thing is good for in a story: (trouble, how the thing helps). N is the hero, F the friend; s/o/p are
# "she/her/her" for the hero, fs/fo/fp for the friend; a capital first letter starts a sentence.
USES: dict[str, list[tuple[str, str]]] = {
    "lantern": [
        ("On the way home the path grew so dark that {F} could not see {fp} own feet.",
         "{N} lit the lantern, and a warm golden light showed them every stone."),
        ("That night {F} got lost among the tall trees.",
         "{N} hung the lantern on a high branch, and {F} followed the light all the way back."),
    ],
    "kite": [
        ("{F} had never seen the sea and was too small to climb the hill.",
         "{N} tied a drawing pencil to the kite, and together they drew a big blue sea in the sky."),
        ("{F} was stuck on the far side of the valley and nobody could hear {fo}.",
         "{N} let the kite fly as high as the clouds, and {F} saw it and knew which way to walk."),
    ],
    "drum": [
        ("At the summer dance nobody knew when to step, and {F} kept bumping into people.",
         "{N} played the drum, boom, boom, boom, and soon every foot found the beat."),
        ("A thick fog came down, and {F} could not find the way home.",
         "{N} beat the drum slowly, and {F} walked towards the sound until they met."),
    ],
    "rope": [
        ("Suddenly {F} slipped into a deep hole and could not climb out.",
         "{N} tied the rope to a tree and pulled with all {p} might until {F} was free."),
        ("The little bridge was broken, and {F} was afraid of the cold water.",
         "{N} stretched the rope from bank to bank, and {F} held on tightly and crossed."),
    ],
    "umbrella": [
        ("Then the rain began to pour, and {F} had no coat.",
         "{N} opened the umbrella, and there was just enough room for two."),
        ("A stream ran across the path, too wide for {F} to jump.",
         "{N} turned the umbrella upside down, and it floated like a little boat."),
    ],
    "map": [
        ("They wanted to visit the old lighthouse, but {F} did not know the way.",
         "{N} spread out the map, found the lighthouse with one finger and led them there before tea."),
        ("At the crossroads {F} wanted to go left, and {N} wanted to go right.",
         "They looked at the map together and laughed, because both roads led home."),
    ],
    "bell": [
        ("Every morning {F} slept too long and missed breakfast.",
         "So {N} rang the bell outside the window, and {F} was the first one at the table."),
        ("While they were picking berries, {F} wandered off into the mist.",
         "{N} rang the bell three times, and {F} came running back to the sound."),
    ],
    "blanket": [
        ("When the snow came, {F} could not stop shivering.",
         "{N} wrapped the blanket around both of them, and soon they were warm as toast."),
        ("{F} was afraid of the thunder that night.",
         "{N} made a cosy tent out of the blanket, and the storm seemed very far away."),
    ],
    "basket": [
        ("{F} had found a hundred apples and could carry only two.",
         "{N} filled the basket to the top, and they carried it home between them."),
        ("A tiny bird had fallen from its nest, and {F} did not know what to do.",
         "{N} laid soft moss in the basket, and the bird slept there until its mother came."),
    ],
    "boat": [
        ("{F} longed to see the little island in the middle of the lake.",
         "They climbed into the boat, and {N} rowed until the sand crunched beneath them."),
        ("The river had flooded, and {F} was sitting alone on a rock.",
         "{N} paddled the boat through the brown water and brought {F} safely to the shore."),
    ],
    "key": [
        ("Behind the ivy {F} discovered a tiny locked door.",
         "{N} turned the key, the door opened, and behind it lay a garden full of roses."),
        ("{F} had locked {fp} supper in a chest and forgotten how to open it.",
         "{N} tried the key, and with a friendly click the lid sprang open."),
    ],
    "book": [
        ("{F} was ill in bed and terribly bored.",
         "{N} sat down beside {fo} and read from the book until the sun went down."),
        ("{F} wanted to bake a cake but did not know how.",
         "{N} looked it up in the book, and they baked the finest cake in the valley."),
    ],
    "scarf": [
        ("An icy wind blew, and {F} had a sore throat.",
         "{N} wound the scarf around {F} three times, and the cough was soon gone."),
        ("{F} had hurt {fp} foot and could not walk.",
         "{N} tied the scarf around the foot, and they limped home together, singing."),
    ],
    "whistle": [
        ("In the evening the sheep would not come home, and {F} was close to tears.",
         "{N} blew the whistle, and one by one the sheep trotted through the gate."),
        ("{F} climbed too high in the old oak and did not dare to come down.",
         "{N} blew the whistle for help, and the neighbours came with a long ladder."),
    ],
    "ladder": [
        ("{F} had thrown {fp} ball onto the roof.",
         "{N} leaned the ladder against the wall, climbed up and threw the ball back down."),
        ("The sweetest cherries hung high at the top of the tree, and {F} was hungry.",
         "{N} climbed the ladder, and soon they both had red lips and full bellies."),
    ],
    "teapot": [
        ("{F} came in from the cold with a red nose and a sad face.",
         "{N} filled the teapot with mint tea, and after one cup {F} was smiling again."),
        ("The little tree in the yard was thirsty, and {F} had no watering can.",
         "{N} carried water in the teapot, and the next morning the tree was in bloom."),
    ],
    "mirror": [
        ("Deep in the cave lived a monster, and {F} was much too scared to go in.",
         "{N} held up the mirror, and the monster saw how funny it looked and began to giggle."),
        ("No sunlight ever reached the bottom of the valley where {F} had a garden.",
         "{N} set the mirror on the hill, and it sent the sun straight down to the flowers."),
    ],
    "seed": [
        ("It was a hungry year, and {F} had nothing left to eat.",
         "{N} planted the seed, and it grew into a pumpkin so big that everyone had soup."),
        ("The yard behind the house was bare, and {F} found it ugly.",
         "They planted the seed and watered it, and by summer a tall sunflower looked over the wall."),
    ],
    "spoon": [
        ("{F} wanted to dig a pond but had no spade.",
         "{N} dug with the spoon day after day, and in spring the first frogs moved in."),
        ("The soup for the feast tasted of nothing, and {F} was ashamed.",
         "{N} stirred in some honey with the spoon, and everybody asked for more."),
    ],
    "ball": [
        ("At first {F} was too shy to play and stood alone by the fence.",
         "{N} rolled the ball over, {F} rolled it back, and they did not stop until dark."),
        ("{F} said that there was nothing to do on such a grey day.",
         "{N} bounced the ball against the wall, and they invented a game with very silly rules."),
    ],
    "hat": [
        ("The sun burned down, and {F} felt quite dizzy.",
         "{N} put the hat on {F} and led {fo} to a cool place under the trees."),
        ("{F} found three eggs and had nothing to carry them in.",
         "{N} took off the hat, laid the eggs inside and carried it home without breaking one."),
    ],
    "shell": [
        ("{F} missed the sea so much that {fs} could not sleep.",
         "{N} held the shell to {fp} ear, and the soft sound of the waves sang {fo} to sleep."),
        ("{F} did not believe in wonders any more.",
         "{N} blew into the shell, and far out on the water a whale sang back."),
    ],
    "violin": [
        ("The town was quiet and sad that winter, and even {F} had stopped laughing.",
         "{N} played the violin on the square, and one window after another opened to listen."),
        ("{F} could not fall asleep.",
         "{N} played a very slow song on the violin, and {F} was snoring before it ended."),
    ],
    "cake": [
        ("{F} thought that everyone had forgotten {fp} birthday.",
         "{N} carried in the cake with seven candles, and {F} blew them all out at once."),
        ("A grumpy giant blocked the road and would not let {F} pass.",
         "{N} offered the giant a slice of cake, and he was so pleased that he carried them home."),
    ],
    "letter": [
        ("The letter was for {F}'s old uncle on the far side of the mountain.",
         "{N} and {F} walked for two days to bring the letter, and the uncle danced for joy."),
        ("After a silly quarrel {F} would not speak to {N}.",
         "So {N} wrote \"I am sorry\" on the back of the letter, and {F} came to the door with a hug."),
    ],
    "star": [
        ("It was the longest night of the year, and {F} was afraid of the dark.",
         "{N} set the star on the window sill, and it glowed softly until morning."),
        ("The star was cold and homesick, and {F} did not know how to help it.",
         "{N} climbed the highest hill and threw the star back into the sky, where it winked at them."),
    ],
    "broom": [
        ("{F} could not find the door of {fp} house under all the autumn leaves.",
         "{N} swept with the broom until the door shone and the leaves lay in a heap to jump in."),
        ("Dust lay thick in the old mill, and {F} could not stop sneezing.",
         "{N} took the broom and swept the mill so clean that {F} moved right in."),
    ],
    "pencil": [
        ("{F} could not remember the face of {fp} faraway grandmother.",
         "{N} took the pencil and drew her just as {F} described her, smile and all."),
        ("The walls of the tiny room made {F} feel lonely.",
         "{N} drew a whole forest on the walls with the pencil, and the room felt full of friends."),
    ],
}
# Things that have no use of their own; they appear in the other plots.
PLAIN_THINGS = """cup bag box coat train flute puppet stone flower coin ring marble cookie pillow clock candle
wagon balloon button feather spade bucket crown puzzle shoe acorn""".split()

HOMES = ["by the river", "at the edge of the forest", "in a quiet valley", "under an old oak tree", "near the sea",
         "on top of a green hill", "behind the mill", "in a little red house", "beside a deep lake",
         "in a town of crooked chimneys"]
SIZES = ["small", "little", "young", "curious", "shy", "brave", "cheerful", "clever", "sleepy", "kind", "lonely",
         "hungry", "gentle"]
TIMES = ["One windy morning", "One foggy evening", "One sunny day", "One rainy afternoon", "One cold winter day",
         "Early one morning", "On the first day of spring", "One quiet Sunday"]
SPOTS = ["under a hedge", "beside the path", "in the tall grass", "behind the garden wall", "on the doorstep",
         "at the bottom of a chest", "between two stones", "under the bridge"]
LOOKS = ["old", "shiny", "tiny", "lovely", "strange", "dusty", "beautiful", "big"]
ENDINGS = [
    "From that day on, {N} and {F} were the best of friends.",
    "And that evening they both went to bed with a smile.",
    "\"You are a true friend,\" said {F}, and {N} blushed to the tips of {p} ears.",
    "They told the tale to everyone who would listen.",
    "{N} had learned that even a small {hero} can do something great.",
    "And if you pass by there today, you can still hear them laugh.",
    "{N} looked up at the stars and thought that it had been a very good day.",
    "Then they shared a warm supper, and all was well.",
    "And whenever one of them was sad, they remembered that day.",
]
