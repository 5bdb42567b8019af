"""The checkpoints of the test cases: all of them, and some under another config.json."""

from collections.abc import Callable

# Each of these modules adds its cases to the list.
import cases_newer  # noqa: F401
import cases_chunked  # noqa: F401
import cases_dense  # noqa: F401
import cases_experts  # noqa: F401
import cases_gemma4
import cases_images  # noqa: F401
import cases_published  # noqa: F401
import cases_recent  # noqa: F401
import cases_recurrent  # noqa: F401
import cases_scaled  # noqa: F401
import cases_sparse  # noqa: F401
from bases import CASES, Spec
from old_configs import Config, v4, v4_oldest, v4_type, v4_unused_window

__all__ = ["CASES", "VARIANTS", "Spec"]

# The same checkpoints under another config.json.
VARIANTS: dict[str, tuple[str, Callable[[Config], Config]]] = {
    "qwen3_moe_v4": ("qwen3_moe", v4),
    "llama_mha_v4": ("llama_mha", v4_oldest),
    "llama_linear_v4": ("llama_linear", v4_type),
    "llama_dynamic_v4": ("llama_dynamic", v4_type),
    "llama_llama3_v4": ("llama_llama3", v4),
    "llama_yarn_v4": ("llama_yarn", v4_type),
    "qwen2_v4": ("qwen2", v4_unused_window),
    "qwen2_sliding_v4": ("qwen2_sliding", v4),
    "glm_v4": ("glm", v4),
    "gemma4_text_global": ("gemma4_text", cases_gemma4.config_of_layers),
}
