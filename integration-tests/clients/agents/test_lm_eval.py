"""Tests EleutherAI's lm-evaluation-harness, unchanged, with the server's own tokenizer, on a
scripted model."""

import json
import os
import subprocess
import sys

import pytest

HELLO = "Hello! This answer was written down before, and it has a few tokens."


@pytest.fixture
def evaluate(server, tmp_path):
    """Runs a task with these fields and returns its metrics."""

    def evaluate(model, route, documents, task, *flags):
        data = tmp_path / "data.jsonl"
        data.write_text("".join(json.dumps(document) + "\n" for document in documents))
        fixed = {"task": "scripted", "dataset_path": "json", "test_split": "test", "metadata": {"version": 1}}
        fixed["dataset_kwargs"] = {"data_files": {"test": str(data)}}
        # JSON is valid YAML.
        (tmp_path / "scripted.yaml").write_text(json.dumps({**fixed, **task}))
        arguments = f"model=any,base_url={server.url}{route},tokenizer_backend=remote,num_concurrent=2,max_retries=1"
        arguments += f",auth_token={server.key}"
        command = [sys.executable, "-m", "lm_eval", "--model", model, "--model_args", arguments, "--tasks", "scripted"]
        command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"), *flags]
        environment = {**os.environ, "OPENAI_API_KEY": server.key, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
        done = subprocess.run(command, env=environment, timeout=200, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        [results] = (tmp_path / "out").rglob("results_*.json")
        return json.loads(results.read_text())["results"]["scripted"]

    return evaluate


def test_multiple_choice(evaluate):
    """Tests the logprobs of continuations: only the first token of an answer is likely after the
    prompt."""
    documents = [{"text": "<|say_3|>", "right": i % 2} for i in range(20)]
    task = {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{ ['Hello! T', 'The tool'] if right == 0 else ['The tool', 'Hello! T'] }}",
        "doc_to_target": "{{right}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    results = evaluate("local-completions", "/v1/completions", documents, task, "--batch_size", "16")
    assert results["acc,none"] == 1.0


def test_generation(evaluate):
    task = {
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": HELLO,
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 64, "do_sample": False, "temperature": 0.0},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    documents = [{"text": f"Hello {i}"} for i in range(4)]
    results = evaluate("local-chat-completions", "/v1/chat/completions", documents, task, "--apply_chat_template")
    assert results["exact_match,none"] == 1.0
