"""Files of weights: what is read of them, and hostile ones, each with one line."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attnviz.errors import InputError, printable
from attnviz.sources.weight_files import Entry, open_weight_file

A, B = torch.arange(6.0).view(2, 3), torch.ones(5, dtype=torch.float64)


def message(path: Path, name: str | None = None) -> str:
    """What is said of a file that cannot be used, without its name."""
    with pytest.raises(InputError) as caught:
        file = open_weight_file(path)
        if name is not None:
            file.floats(name)
    return str(caught.value).replace(printable(path), "FILE")  # a long path is cut


@pytest.mark.parametrize("form", ["a.safetensors", "a.pt", "old.pth", "index", "folder"])
def test_every_form_has_the_same_tensors(form: str, tmp_path: Path) -> None:
    path = tmp_path / form
    if form in ("a.pt", "old.pth"):
        torch.save({"a": A, "b": B}, path, _use_new_zipfile_serialization=form == "a.pt")
    elif form == "a.safetensors":
        save_file({"a": A, "b": B}, path)
    else:
        save_file({"a": A, "other": B}, tmp_path / "1.safetensors")
        save_file({"b": B}, tmp_path / "2.safetensors")
        places = {"a": "1.safetensors", "b": "2.safetensors"}
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}))
        path = index if form == "index" else tmp_path
    file = open_weight_file(path)
    assert dict(file.entries) == {"a": Entry((2, 3), "float32"), "b": Entry((5,), "float64")}
    assert torch.equal(file.floats("a"), A)
    assert torch.equal(file.floats("b"), B)


@pytest.mark.parametrize(
    "nested",
    [
        {"state_dict": {"a": A}},
        {"model": {"a": A}, "epoch": 3, "optimizer": {"state": {}}},
        {"state_dict": {"model": {"a": A}}},
        {"a": A, "note": "no tensor", 7: B},
    ],
)
def test_a_checkpoint_is_looked_into(nested: dict, tmp_path: Path) -> None:
    torch.save(nested, tmp_path / "a.pt")
    assert list(open_weight_file(tmp_path / "a.pt").entries) == ["a"]


def test_a_config_beside_is_read_and_a_broken_one_is_none(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "a.safetensors")
    for text, expected in (
        ('{"n_head": 3}', {"n_head": 3}),
        ("[1]", {}),
        ("{", {}),
        ("[" * 9999, {}),
    ):
        (tmp_path / "config.json").write_text(text)
        assert open_weight_file(tmp_path / "a.safetensors").config == expected


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def test_code_is_never_run(tmp_path: Path) -> None:
    evil = Evil(f"touch {tmp_path / 'ran'}")
    torch.save({"a": evil}, tmp_path / "evil.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps({"a": evil}))
    torch.save(nn.MultiheadAttention(8, 2), tmp_path / "module.pt")
    what = {
        "evil": " (posix.system)",
        "raw": "",
        "module": " (torch.nn.modules.activation.MultiheadAttention)",
    }
    for name, kind in what.items():
        assert message(tmp_path / f"{name}.pt") == (
            f"FILE holds Python objects beside tensors{kind}, which are never loaded; "
            "save the weights alone: torch.save(layer.state_dict(), FILE)"
        )
    assert not (tmp_path / "ran").exists()
    pickle.loads((tmp_path / "raw.pt").read_bytes())
    assert (tmp_path / "ran").exists()  # it would have


def test_damaged_files(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "whole.safetensors")
    torch.save({"a": torch.ones(999)}, tmp_path / "whole.pt")
    whole, torch_file = ((tmp_path / f"whole.{s}").read_bytes() for s in ("safetensors", "pt"))
    safe = "FILE is not a .safetensors file, or is damaged: "
    saved = "FILE is not a file of torch.save, or is damaged"
    contents = {
        "short.safetensors": (whole[:-3], safe),
        "header.safetensors": (struct.pack("<Q", 2**60) + b"{}", safe),
        "empty.safetensors": (b"", safe),
        "short.pt": (torch_file[:700], saved),
        "empty.pt": (b"", saved),
        "text.pt": (b"hello, this is a text", saved),
        "zip.pt": (torch_file[:60] + b"\0" * 200 + torch_file[260:], "FILE "),
    }
    for name, (data, start) in contents.items():
        (tmp_path / name).write_bytes(data)
        found = message(tmp_path / name)
        assert found.startswith(start), found
        assert "\n" not in found


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10**7)
    assert message(tmp_path / "a.pt") == (
        "FILE is a compressed archive, which torch.save never writes"
    )


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(2, dtype=torch.int32), "FILE: a is {}; weights are one of float64, float32, bfloat16, float16"),  # noqa: E501
        (torch.ones(2).to(torch.float8_e4m3fn), "FILE: a is {}; weights are one of float64, float32, bfloat16, float16"),  # noqa: E501
        (torch.tensor([[1.0, 2.0], [3.0, torch.nan]]), "FILE: a has nan at [1, 1]; weights are finite numbers"),  # noqa: E501
        (torch.tensor([-torch.inf]).half(), "FILE: a has -inf at [0]; weights are finite numbers"),
        (torch.tensor(torch.inf).bfloat16(), "FILE: a has inf at []; weights are finite numbers"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_what_no_weight_can_be(
    tensor: torch.Tensor, expected: str, form: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{form}"
    names = {torch.int32: ("I32", "int32"), torch.float8_e4m3fn: ("F8_E4M3", "float8_e4m3fn")}
    if form == "pt":
        torch.save({"a": tensor}, path)
    else:
        save_file({"a": tensor}, path)
    kind = names.get(tensor.dtype, ("", ""))[form == "pt"]
    assert message(path, "a") == expected.format(kind)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_wide_spread_is_finite(dtype: torch.dtype, tmp_path: Path) -> None:
    largest = torch.finfo(dtype).max
    save_file({"a": torch.tensor([largest, -largest], dtype=dtype)}, tmp_path / "a.safetensors")
    assert open_weight_file(tmp_path / "a.safetensors").floats("a").tolist() == [largest, -largest]


def test_a_tensor_that_claims_more_than_memory(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1).expand(10**8, 10**8)}, tmp_path / "a.pt")
    found = message(tmp_path / "a.pt", "a")
    assert found.startswith("FILE: a of shape [100000000, 100000000] needs 35.5 PiB of memory and ")
    assert found.endswith(" are free; give a smaller layer")


def test_other_things(tmp_path: Path) -> None:
    torch.save([A], tmp_path / "list.pt")
    torch.save(A, tmp_path / "tensor.pt")
    torch.save({"a": A.to_sparse()}, tmp_path / "sparse.pt")
    (tmp_path / "a.model").touch()
    (tmp_path / "folder").mkdir()
    index = tmp_path / "x.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../a.safetensors"}}')
    (tmp_path / "y.safetensors.index.json").write_text('{"weight_map": ["a"]}')
    (tmp_path / "z.safetensors.index.json").write_text('{"weight_map": {"a": "short.safetensors"}}')
    (tmp_path / "short.safetensors").write_bytes(b"1")
    (tmp_path / "w.safetensors.index.json").write_text("{")
    expected = {
        "list.pt": "FILE holds a list; a state dict is expected, tensors by their names",
        "tensor.pt": "FILE holds a tensor; a state dict is expected, tensors by their names",
        "sparse.pt": "FILE holds a, which is not a dense tensor of numbers",
        "a.gguf": "FILE has the suffix '.gguf'; weights have one of .safetensors, .pt, .pth, .bin; --model runs it",  # noqa: E501
        "a.model": "FILE has the suffix '.model'; weights have one of .safetensors, .pt, .pth, .bin",  # noqa: E501
        "none.pt": "FILE: no such file or directory",
        "none.safetensors": "FILE: no such file or directory",
        "folder": "FILE is a folder without model.safetensors, model.safetensors.index.json, "
        "pytorch_model.bin; give a file of weights",
        "x.safetensors.index.json": "FILE names a shard outside of its folder: ../a.safetensors",
        "y.safetensors.index.json": 'FILE is not an index of shards: "weight_map", from '
        "names to files, is missing",
        "w.safetensors.index.json": "FILE is not JSON: Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)",
    }
    for name, text in expected.items():
        assert message(tmp_path / name) == text
    assert message(tmp_path / "z.safetensors.index.json").startswith(
        "FILE names a shard that is not a .safetensors file, or is damaged: "
    )


def test_a_member_whose_name_is_no_text(tmp_path: Path) -> None:
    """Its directory says UTF-8, and the name is not."""
    path = tmp_path / "a.pt"
    torch.save({"é" * 3: A}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("näme", b"")
    path.write_bytes(path.read_bytes().replace("näme".encode(), b"n\xd2\xd2me"))
    assert message(path).startswith("FILE is a damaged file of torch.save: 'utf-8' codec")
