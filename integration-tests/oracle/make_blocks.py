"""Writes random blocks of GGUF's types with codebooks, ternary types and NVFP4, and the weights that the package gguf makes of them.

    python3 make_blocks.py

`../golden-blocks/TYPE` has four blocks, and then their weights in single precision. The
codebooks themselves are facts of the format; the script writes them to
`kernels/numbers/src/formats/ggml/grids/TYPE`, as the package has them: two bytes for each entry, with
the first element in the lowest bits.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCKS = 4
# The places of the float16 number of a block. IQ1_M has it in pieces, and NVFP4 has none.
TYPES = {
    "IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0, "IQ3_XXS": 0, "IQ3_S": 0, "IQ1_S": 0, "IQ1_M": None,
    "TQ1_0": 52, "TQ2_0": 64, "NVFP4": None,
}


def main():
    generator = np.random.default_rng(11)
    target = ROOT / "integration-tests/golden-blocks"
    target.mkdir(exist_ok=True)
    for name, half in TYPES.items():
        kind = Type[name]
        _, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = generator.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        scales = generator.uniform(-0.1, 0.1, BLOCKS).astype("<f2")
        if name == "NVFP4":
            # Scales that are no usual numbers: all bits, nothing, a sign, and a subnormal number.
            blocks[0, :4] = [0x7F, 0x00, 0xFF, 0x03]
        elif half is None:
            # The upper four bits of four words are the number.
            words = blocks[:, 48:].copy().view("<u2")
            bits = scales.view("<u2")
            for place in range(4):
                words[:, place] = (words[:, place] & 0x0FFF) | ((bits >> (4 * place)) & 15) << 12
            blocks[:, 48:] = words.view(np.uint8)
        else:
            blocks[:, half : half + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
        weights = gguf.quants.dequantize(blocks, kind)
        assert np.isfinite(weights).all() and len(np.unique(weights)) > (8 if name.startswith("TQ") else 30), name
        (target / name).write_bytes(blocks.tobytes() + weights.astype("<f4").tobytes())
        if name.startswith("IQ") and name != "IQ1_M":
            codebook = getattr(gguf.quants, name).grid_hex
            raw = bytes.fromhex(codebook.decode())
            assert len(raw) == 2 * getattr(gguf.quants, name).grid_shape[0]
            grids = ROOT / "kernels/numbers/src/formats/ggml/grids"
            (grids / name.lower()).write_bytes(raw)


main()
