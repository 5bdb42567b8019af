"""The server's address and key, which the Rust test `clients` passes in the environment."""

import os
import sys
from pathlib import Path

import pytest

# `time_limits` lies in the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@pytest.fixture(scope="session")
def url():
    return os.environ["MILLRACE_URL"]


@pytest.fixture(scope="session")
def key():
    return os.environ["MILLRACE_KEY"]


@pytest.fixture(scope="session")
def weather():
    """The arguments of the function `weather` as a JSON schema."""
    return {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
