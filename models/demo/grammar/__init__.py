"""The grammar that writes the demo model's corpus: one module per kind of task. No outside text is used."""
