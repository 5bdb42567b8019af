"""Tests JavaScript libraries; see sdks.test.cjs."""

import os
import subprocess
from pathlib import Path


def test_the_libraries_of_npm(server, node):
    environment = {
        **os.environ,
        "NODE_PATH": str(node / "node_modules"),
        "MILLRACE_URL": server.url,
        "MILLRACE_KEY": server.key,
        "AI_SDK_LOG_WARNINGS": "false",
    }
    tests = Path(__file__).with_name("sdks.test.cjs")
    done = subprocess.run(["node", "--test", str(tests)], env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
