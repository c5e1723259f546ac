"""`attnviz shapes --module` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnviz.cli.main import call

MODULES = Path(__file__).parent / "data/shapes"


def test_a_wrong_reshape_is_named_at_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    place = f"{MODULES / 'wrong_modules.py'}:ViewNoTranspose"
    given = ["--init", "d_model=512,n_heads=8", "--input", "2,6,512"]
    assert call(["shapes", "--module", place, *given]) == 0
    out = capsys.readouterr().out
    line = (
        (MODULES / "wrong_modules.py")
        .read_text()
        .splitlines()
        .index("        return x.view(x.shape[0], self.n_heads, -1, self.d_k)  # wrong")
    )
    assert f"warning wrong_modules.py:{line + 1}\n" in out


def test_a_right_module_gets_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    place = f"{MODULES / 'correct_modules.py'}:ViewTranspose"
    given = ["--init", "d_model=512, n_heads=8"]
    assert call(["shapes", "--module", place, *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["class_name"] == "ViewTranspose"
    assert found["findings"] == []
    assert len(found["steps"]) > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--module", "layer.py"], "--module layer.py: FILE.py:CLASS is expected"),
        (["--module", ":Layer"], "--module :Layer: FILE.py:CLASS is expected"),
        (
            ["x", "--module", "a.py:B"],
            "--module and TEXT both give what is traced; give one of them",
        ),
        (
            ["--n-heads", "4", "--module", "a.py:B"],
            "--module and --n-heads both give what is traced; give one of them",
        ),
        (["--init", "n=1", "x"], "--init and --input go with --module FILE.py:CLASS"),
        (
            ["--module", "a.py:B", "--format", "markdown"],
            "--format markdown shows no module; use table or json",
        ),
    ],
)
def test_flags_that_do_not_go_together(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["shapes", *arguments]) == 2
    assert capsys.readouterr().err == f"attnviz: {message}\n"


def test_what_the_module_prints_stays_out_of_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loud.py").write_text(
        "import torch\nprint('loaded')\nclass Loud(torch.nn.Linear):\n"
        "    def forward(self, x):\n        print('called')\n        return super().forward(x)\n"
    )
    given = ["--init", "512, 512", "--json"]
    assert call(["shapes", "--module", f"{tmp_path / 'loud.py'}:Loud", *given]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["class_name"] == "Loud"
    assert said.err.startswith("loaded\ncalled\n")
