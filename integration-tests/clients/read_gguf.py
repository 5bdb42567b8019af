"""Prints the architecture, the number of tokens, and the tensors of a GGUF file, as the package
`gguf` reads them: name, type, and the sum of the dequantized numbers.

read_gguf.py FILE
"""

import json
import sys

import gguf

reader = gguf.GGUFReader(sys.argv[1])
tensors = [
    [tensor.name, tensor.tensor_type.name, float(gguf.quants.dequantize(tensor.data, tensor.tensor_type).sum())]
    for tensor in reader.tensors
]
architecture = reader.get_field("general.architecture").contents()
tokens = len(reader.get_field("tokenizer.ggml.tokens").contents())
print(json.dumps({"architecture": architecture, "tokens": tokens, "tensors": tensors}))
