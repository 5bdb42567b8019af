"""MXFP4 as gpt-oss stores it, in numpy: e2m1 numbers in blocks of 32 with a power of two each.

The numbers are those of the Open Compute Project's "Microscaling Formats": a sign, two bits of
exponent and one of mantissa. Two codes are a byte, the first one in the lower half. Experts are
stored by output feature, `[experts, outputs, inputs / 32, 16]`, beside their scales.
"""

import numpy as np
import torch

from cases import Spec
from old_configs import Config

State = dict[str, torch.Tensor]
BLOCK = 32
# The sizes by code: 0 and 0.5 are subnormal.
SIZES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
STORED = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")


def quantize(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the codes `[..., blocks, 32]` and the biased exponents `[..., blocks]` of rows."""
    blocks = rows.reshape(*rows.shape[:-1], -1, BLOCK).astype(np.float64)
    largest = np.abs(blocks).max(-1, keepdims=True)
    exponents = np.floor(np.log2(np.maximum(largest, 2.0**-100))) - 2
    scaled = blocks / 2.0**exponents
    codes = np.abs(np.abs(scaled)[..., None] - SIZES).argmin(-1) + 8 * (scaled < 0)
    return codes.astype(np.uint8), (exponents[..., 0] + 127).astype(np.uint8)


def dequantize(codes: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    signs = np.where(codes >= 8, -1.0, 1.0)
    numbers = signs * SIZES[codes % 8] * 2.0 ** (exponents.astype(np.float64) - 127)[..., None]
    return numbers.reshape(*codes.shape[:-2], -1).astype(np.float32)


def rounded(experts: torch.Tensor) -> torch.Tensor:
    """Rounds experts `[experts, inputs, outputs]` to numbers that MXFP4 holds."""
    rows = experts.transpose(1, 2).numpy()
    return torch.from_numpy(dequantize(*quantize(rows))).transpose(1, 2).contiguous()


def to_mxfp4(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    out = {}
    for name, x in state.items():
        if not name.endswith(STORED):
            out[name] = x
            continue
        codes, exponents = quantize(x.transpose(1, 2).numpy())
        pairs = codes.reshape(*codes.shape[:-1], BLOCK // 2, 2)
        out[f"{name}_blocks"] = torch.from_numpy(pairs[..., 0] | pairs[..., 1] << 4)
        out[f"{name}_scales"] = torch.from_numpy(exponents)
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return out, dict(config, quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=kept))


def from_mxfp4(state: State, config: Config) -> State:
    out = {}
    for name, x in state.items():
        if name.endswith("_blocks"):
            name = name.removesuffix("_blocks")
            bytes_ = x.numpy()
            codes = np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(*bytes_.shape[:-1], BLOCK)
            rows = torch.from_numpy(dequantize(codes, state[f"{name}_scales"].numpy()))
            out[name] = rows.transpose(1, 2).contiguous()
        elif not name.endswith("_scales"):
            out[name] = x
    return out
