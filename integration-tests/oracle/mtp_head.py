"""The head of multi-token prediction (MTP), built from the layer classes of transformers.

At position i the head reads token i + 1 and the main model's hidden state of position i after the
final norm. It predicts token i + 2 with the main model's `lm_head`.
"""

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

State = dict[str, Tensor]  # tensors of a checkpoint, by name


class Head(nn.Module):
    """One decoder layer between a projection and a norm of its own."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = copy.deepcopy(model.config)
        main, width = model.model, config.hidden_size
        index = config.num_hidden_layers
        if hasattr(config, "layer_types"):  # the layer is one of attention also in hybrid models
            config.layer_types = [*config.layer_types, "full_attention"]
        norm_class, layer_class = type(main.norm), type(main.layers[0])
        self.enorm = norm_class(width, eps=config.rms_norm_eps)
        self.hnorm = norm_class(width, eps=config.rms_norm_eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layer = layer_class(config, index)
        self.norm = norm_class(width, eps=config.rms_norm_eps)
        self.rotary = type(main.rotary_emb)(config=config)
        self.eval()

    def inputs(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Returns the inputs of the layer. All shapes are [batch, positions, width]."""
        return self.fc(torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1))

    def forward(self, inputs: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Returns the layer's output before the norm, [batch, positions, width].

        `positions` has the position of each input. `visible` [positions, positions] says of each
        pair whether the first attends to the second.
        """
        mask = torch.zeros(visible.shape, dtype=inputs.dtype)
        mask = mask.masked_fill(~visible, torch.finfo(inputs.dtype).min)[None, None]
        positions = positions[None]
        rotation = self.rotary(inputs, positions)
        return self.layer(
            inputs, position_embeddings=rotation, attention_mask=mask, position_ids=positions
        )


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def hidden_of(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Returns the main model's hidden states after its final norm, [batch, tokens, width]."""
    return model.model(input_ids=ids, use_cache=False).last_hidden_state


@torch.no_grad()
def read(model: PreTrainedModel, head: Head, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Returns the layer's inputs and the head's normed outputs at positions 0 to n - 2."""
    batch = torch.tensor([ids])
    embedded, hidden = model.model.embed_tokens(batch[:, 1:]), hidden_of(model, batch)[:, :-1]
    x = head.inputs(embedded, hidden)
    return x, head.norm(head(x, torch.arange(len(ids) - 1), causal(len(ids) - 1)))


@torch.no_grad()
def logits_of(model: PreTrainedModel, head: Head, ids: list[int]) -> Tensor:
    """Returns the logits of the head at positions 0 to n - 2, [n - 1, vocab]."""
    return model.lm_head(read(model, head, ids)[1])[0].float()


@torch.no_grad()
def chain(
    model: PreTrainedModel, head: Head, ids: list[int], guesses: int, normed: bool = True
) -> Tensor:
    """Returns the logits of successive guesses after the tokens `ids`, [guesses, vocab].

    After the first guess, the last guess and the head's own output take the places of the token
    and the hidden state. Without `normed` that output is the one before the head's norm.
    """
    x, y = read(model, head, ids)
    rows = [model.lm_head(y)[0, -1]]
    hidden = y[:, -1:]
    if not normed:
        hidden = head(x, torch.arange(x.shape[1]), causal(x.shape[1]))[:, -1:]
    while len(rows) < guesses:
        embedded = model.model.embed_tokens(rows[-1].argmax().reshape(1, 1))
        x = torch.cat([x, head.inputs(embedded, hidden)], dim=1)
        z = head(x, torch.arange(x.shape[1]), causal(x.shape[1]))[:, -1:]
        hidden = head.norm(z) if normed else z
        rows.append(model.lm_head(head.norm(z))[0, -1])
    return torch.stack(rows).float()


# The names of the head's own tensors in a checkpoint. `L` stands for the number of layers.
MTP_NAMES = {
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
    "fc.": "mtp.fc.",
    "norm.": "mtp.norm.",
    "layer.": "mtp.layers.0.",
}
NEXTN_NAMES = {
    "enorm.": "model.layers.L.enorm.",
    "hnorm.": "model.layers.L.hnorm.",
    "fc.": "model.layers.L.eh_proj.",
    "norm.": "model.layers.L.shared_head.norm.",
    "layer.": "model.layers.L.",
}


def prefixes(model: PreTrainedModel) -> dict[str, str]:
    """Returns the beginnings of names in the module and in a checkpoint of the model's family."""
    names = MTP_NAMES if model.config.model_type.startswith("qwen") else NEXTN_NAMES
    index = str(model.config.num_hidden_layers)
    return {own: stored.replace("L", index) for own, stored in names.items()}


def stored(model: PreTrainedModel, head: Head) -> State:
    """Returns the tensors of the head as released checkpoints have them."""
    state = {}
    for own, prefix in prefixes(model).items():
        for name, x in head.state_dict().items():
            if not name.startswith(own):
                continue
            name = prefix + name.removeprefix(own)
            if name.endswith("experts.gate_up_proj"):
                for e, both in enumerate(x):
                    gate, up = both.chunk(2)
                    state[name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate
                    state[name.replace("gate_up_proj", f"{e}.up_proj.weight")] = up
            elif name.endswith("experts.down_proj"):
                for e, down in enumerate(x):
                    state[name.replace("down_proj", f"{e}.down_proj.weight")] = down
            else:
                state[name] = x
    nextn = prefixes(model)["layer."]
    if nextn.startswith("model."):  # released files hold these copies, which readers ignore
        state[f"{nextn}embed_tokens.weight"] = model.model.embed_tokens.weight.data
        state[f"{nextn}shared_head.head.weight"] = model.lm_head.weight.data
    return {name: x.clone().contiguous() for name, x in state.items()}


def restored(model: PreTrainedModel, state: State) -> Head:
    """Returns the head that a checkpoint's tensors describe."""
    head = Head(model)
    own_state = {}
    for name, p in head.state_dict().items():
        own = next(own for own in prefixes(model) if name.startswith(own))
        name_in_file = prefixes(model)[own] + name.removeprefix(own)
        block, found, _ = name_in_file.partition("experts.")
        if found and p.dim() == 3:
            experts = [f"{block}experts.{e}." for e in range(p.shape[0])]
            if name.endswith("gate_up_proj"):
                pairs = [[state[f"{e}{k}_proj.weight"] for k in ("gate", "up")] for e in experts]
                own_state[name] = torch.stack([torch.cat(pair) for pair in pairs])
            else:
                own_state[name] = torch.stack([state[f"{e}down_proj.weight"] for e in experts])
        else:
            own_state[name] = state[name_in_file]
    head.load_state_dict(own_state)
    return head
