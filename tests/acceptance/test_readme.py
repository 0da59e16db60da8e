"""Every command in the README's five minutes is run, and answers what the README shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.support import put
from tests.demo import SAMPLE
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
MARK = "::end of command::"


def sessions() -> list[tuple[str, list[str]]]:
    """The commands of the README with the lines that they are said to print."""
    text = (ROOT / "README.md").read_text("utf-8")
    text = text[text.index("## Five minutes with curl") : text.index("## What is where")]
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def shows(printed: list[str], said: list[str]) -> bool:
    """Whether the printed lines are those said; `…` stands for any text, a line of it alone for any lines."""
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in said
    )
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


@pytest.mark.slow
def test_the_five_minutes_are_as_the_readme_says(start_gateway, tmp_path):
    server = start_gateway()
    publish = [sys.executable, "-m", "gateway", "publish", server.amqp, *map(str, SAMPLE)]
    subprocess.run(publish, check=True, capture_output=True)
    commands = sessions()
    assert len(commands) > 12
    replacements = {
        "localhost:8080": server.http.removeprefix("http://"),
        "amqp://127.0.0.1:5672": server.amqp,
        "8081": str(free_port()),
        "--data wes-data-2": f"--data {tmp_path / 'replica'}",
        "catalogue.sqlite": str(tmp_path / "catalogue.sqlite"),
        ".venv/bin/wes": f"{sys.executable} -m gateway",
    }
    script = ""
    for command, _ in commands:
        for old, new in replacements.items():
            command = command.replace(old, new)
        script += f"{command}\nprintf '%s\\n' '{MARK}'\n"
    done = subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, cwd=ROOT, env=os.environ, timeout=120
    )
    outputs = done.stdout.replace("\r\n", "\n").split(f"{MARK}\n")
    for (command, said), output in zip(commands, outputs, strict=False):
        printed = output.splitlines()
        assert shows(printed, said) or (not said and not printed), f"{command}\n{output}\n{done.stderr}"
    assert len(outputs) == len(commands) + 1


@pytest.mark.slow
def test_the_python_lines_work(start_gateway):
    server = start_gateway()
    for number in range(3):
        put(server.http, f"/things/{number}", b"1")
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = lines.replace("http://localhost:8080", server.http)
    process = subprocess.Popen([sys.executable, "-uc", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with process:
        printed = [process.stdout.readline() for _ in range(3)]
        process.kill()
    for number, line in enumerate(printed):
        assert line.startswith(f"PUT /things/{number} Position(content_id='<{number}.")


def test_the_comparison_tells_a_wrong_answer_from_a_right_one():
    assert shows(["HTTP/1.1 200 OK", "a", "b"], ["HTTP/1.1 200 OK", "…"])
    assert shows(["x: 1", "y"], ["x: …", "y"])
    assert not shows(["HTTP/1.1 404 Not Found"], ["HTTP/1.1 200 OK", "…"])
    assert not shows(["a", "b"], ["a"])
