"""A person's own module, traced: right ones without a warning, wrong ones named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

from attnviz.cli.main import call
from attnviz.errors import InputError
from attnviz.module_trace import ModuleError, ModuleFinding, ModuleTrace
from attnviz.render.shapes_report import module_trace_as_json, print_module_trace
from attnviz.sources.from_module import InputSpec, parse_init, parse_input, trace_module
from attnviz.sources.provenance import Info, Ledger, einsum_letters, laid_out, separated

DATA = Path(__file__).parent / "data" / "shapes"
RIGHT, WRONG = DATA / "correct_modules.py", DATA / "wrong_modules.py"
X = "2,6,512"


def axes(trace: ModuleTrace, operation: str) -> list[str]:
    return [" ".join(step.axes) for step in trace.steps if step.operation == operation]


# ── right ────────────────────────────────────────────────────────────────────────────────────

CORRECT = {
    "ViewTranspose": ("d_model=512,n_heads=8", [X]),
    "Reshape": ("", [X]),
    "Einsum": ("512, 8", [X]),
    "EinsumEllipsis": ("512, n_heads=8", [X]),
    "FusedChunk": ("", [X]),
    "FusedPermute": ("", [X]),
    "Sdpa": ("", [X, "mask: bool 2,1,6,6"]),
    "Grouped": ("hidden_size=64,num_heads=8,num_kv_heads=2", ["2,6,64"]),
    "TorchOwn": ("", [X]),
    "TorchOwnMasked": ("", [X, "bool 2,6,6"]),
    "TimeFirst": ("", ["T=6,B=2,512"]),
    "Folded": ("", [X, "bool 2,6,6"]),
    "HeadLoop": ("", [X]),
    "Cross": ("", [X, "2,9,512", "bool 2,9"]),
    "OwnGlobals": ("", ["int 2,6"]),
    "TwoWidths": ("d_in=3,d_out=4,context_length=6,dropout=0.0,num_heads=2", ["2,6,3"]),
    "Windows": ("", ["2,16,512"]),
    "RelativeShift": ("", [X]),
    "LinearAttention": ("", [X]),
    "TalkingHeads": ("", [X]),
    "OneKeyHead": ("dim=64,n_heads=4,head_dim=16", ["2,6,64"]),
    "Gated": ("", [X]),
    "OneKeyHeadEinsum": ("64, 4", ["2,6,64"]),
    "Slots": ("", [X]),
    "Biased": ("64, 4", ["4,6,64", "position_bias: 4,6,6"]),
    "HeadsSlowest": ("64, 4", ["2,6,64", "bool 8,6,6"]),
    "FoldedMask": ("64, 4", ["2,6,64", "bool 8,6,6"]),
    "AddedMask": ("64, 4", ["2,6,64", "attention_mask: 2,6"]),
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_module_gets_no_warning(name: str) -> None:
    init, inputs = CORRECT[name]
    trace = trace_module(RIGHT, name, init, inputs)
    assert trace.findings == ()
    assert trace.class_name == name
    assert all(len(step.axes) == len(step.shape) for step in trace.steps)
    assert not any("not known" in note for note in trace.notes)
    if not trace.notes and name != "Slots":  # whose softmax does not run along keys, on purpose
        assert trace.along_keys == trace.softmaxes > 0


@pytest.mark.parametrize("name", ["Reshape", "Sdpa", "TorchOwn", "FusedPermute"])
def test_sizes_that_are_equal_by_chance_give_no_warning(name: str) -> None:
    assert trace_module(RIGHT, name, "64, 8", ["8,8,64"]).findings == ()


@pytest.mark.parametrize(
    "mask",
    [
        "attention_mask: 2,6",
        "attention_mask: int64 2,6",
        "attention_mask: float B=2,T=6",
        "bool 2,6",
        "2,6",
        "B=2,T=6",
    ],
)
def test_a_mask_of_any_type_is_told_from_features(mask: str) -> None:
    trace = trace_module(RIGHT, "AddedMask", "64, 4", ["2,6,64", mask])
    assert (trace.findings, trace.notes) == ((), ())
    assert axes(trace, "getitem") == ["B 1 1 T"]
    assert trace.along_keys == trace.softmaxes == 1
    square = ["6,6,64", mask.replace("2", "6")]
    if "attention" in mask or "B=" in mask:  # else its rows may as well be queries
        assert trace_module(RIGHT, "AddedMask", "64, 4", square).findings == ()


def test_a_mask_of_queries_and_keys_is_no_mask_of_samples() -> None:
    for mask in ("mask: 6,6", "6,6", "attention_mask: T=6,T=6", "attn_bias: 1,1,6,6", "1,4,6,6"):
        trace = trace_module(WRONG, "AddedMaskMeetsQueries", "64, 4",
                             ["2,6,64", mask.split(": ")[-1]])  # fmt: skip
        assert trace.findings == ()
    named = ["6,6,64", "attention_mask: T=6,T=6"]
    assert trace_module(WRONG, "AddedMaskMeetsQueries", "64, 4", named).findings == ()


def test_every_module_of_the_samples_is_tried() -> None:
    for file, tried in ((RIGHT, CORRECT), (WRONG, WRONG_ONES)):
        classes = {line.split()[1].split("(")[0] for line in file.read_text(encoding="utf-8")
                   .splitlines() if line.startswith("class ")}  # fmt: skip
        assert classes - {"Base"} == set(tried)


def test_axes_have_names_and_steps_have_lines() -> None:
    trace = trace_module(RIGHT, "Reshape", "", [X])
    assert axes(trace, "reshape") == ["B T H d_k"] * 3 + ["B T d_model"]
    assert axes(trace, "matmul") == ["B H Tq Tk", "B H T d_k"]
    assert axes(trace, "tril") == ["Tq Tk"]
    assert trace.sizes == {"B": 2, "H": 8, "T": 6, "d_model": 512}
    assert trace.n_parameters == 4 * (512 * 512 + 512)
    lines = RIGHT.read_text(encoding="utf-8").splitlines()
    for step in trace.steps:
        file, line = step.source.split(":")
        assert file == "correct_modules.py"
        assert lines[int(line) - 1].strip() == step.text
    view = next(step for step in trace.steps if step.operation == "permute")
    assert (view.shape, view.is_view, view.dtype) == ((2, 8, 6, 64), True, "float32")


def test_cross_attention_tells_queries_from_keys() -> None:
    trace = trace_module(RIGHT, "Cross", "", [X, "2,9,512", "bool 2,9"])
    assert axes(trace, "matmul") == ["B H Tq Tk", "B H Tq d_k"]
    assert axes(trace, "getitem") == ["B 1 1 Tk"]
    assert {name: trace.sizes[name] for name in ("Tq", "Tk")} == {"Tq": 6, "Tk": 9}


def test_grouped_heads_and_halves_have_names() -> None:
    trace = trace_module(RIGHT, "Grouped", *CORRECT["Grouped"])
    assert "B T Hkv d_k" in axes(trace, "view")
    assert "B T Hkv·d_k" in axes(trace, "linear")
    assert axes(trace, "chunk") == ["B H T d_k/2", "B Hkv T d_k/2"]
    assert axes(trace, "repeat_interleave") == ["B H T d_k"]
    assert "B Hkv 4 T d_k" in axes(trace, "expand")


def test_heads_that_no_argument_names() -> None:
    trace = trace_module(RIGHT, "OwnGlobals", "", ["int 2,6"])
    assert axes(trace, "view") == ["B T 3 H d_k"]
    assert axes(trace, "embedding") == ["B T 512"]


def test_folded_axes_and_fused_widths() -> None:
    assert axes(trace_module(RIGHT, "TimeFirst", "", ["T=6,B=2,512"]), "bmm") == [
        "B·H Tq Tk",
        "B·H T d_k",
    ]
    fused = trace_module(RIGHT, "FusedChunk", "", [X])
    assert axes(fused, "linear") == ["B T 3·d_model", "B T d_model"]
    chunk = next(step for step in fused.steps if step.operation == "chunk")
    assert chunk.count == 3


def test_a_number_that_has_no_name_is_the_one_at_the_sizes_given() -> None:
    trace = trace_module(RIGHT, "OneKeyHead", *CORRECT["OneKeyHead"])
    assert axes(trace, "softmax") == ["B H T 10"]  # 6 positions and 4 learned keys


def test_notes_say_how_the_trace_was_made() -> None:
    (note,) = trace_module(RIGHT, "HeadLoop", "", [X]).notes
    assert note == ("the number of ops depends on the sizes; axes are named from the sizes given")
    (note,) = trace_module(RIGHT, "Windows", "", ["2,16,512"]).notes
    assert note.startswith("with another batch and length (B 11, T 13) it fails at ")
    assert "view of [B T d_model] = [11 13 512]: 73216 elements cannot be [11 3 4 512]" in note
    (note,) = trace_module(
        WRONG, "AddedMaskMeetsQueries", "", ["6,6,512", "attention_mask: 6,6"]
    ).notes
    assert (
        ": add of [B H Tq Tk] = [11 8 13 13] with [B T] = [11 13]: B meets Tq: batch 11 ≠ queries "
        "13; for padded keys, mask[:, None, None, :] is"
    ) in note


# ── wrong ────────────────────────────────────────────────────────────────────────────────────

B8 = ["8,6,512", "bool 8,6,6"]
WRONG_ONES = {
    "ViewNoTranspose": ("regroup", [X], "view of [B T d_model] as [B H T d_k]"),
    "FoldByView": ("regroup", [X], "view of [B T d_model] as [B·H T d_k]"),
    "MergeNoTranspose": ("regroup", [X], "reshape of [B H T d_k] as [B T d_model]"),
    "MergeFold": ("regroup", [X], "view of [B·H T d_k] as [B T d_model]"),
    "KeysByView": ("regroup", [X], "reshape of [B H T d_k] as [B H d_k T]"),
    "FlattenFirst": ("regroup", [X], "view of [B·T·d_model] as [B H T d_k]"),
    "HeadsAttend": ("softmax", [X], "runs over H (axis 3 of [B T H H])"),
    "SoftmaxOverHeads": ("softmax", [X], "runs over H (axis 1 of [B H Tq Tk])"),
    "SoftmaxNoDim": ("softmax", [X], "runs over H (axis 1 of [B H Tq Tk])"),
    "SoftmaxOverBatch": ("softmax", [X], "runs over the batch (axis 0 of [B H Tq Tk])"),
    "SoftmaxOverQueries": ("normalised", [X], "ran over queries, Tq of [B H Tq Tk], but the sum"),
    "QueriesByEinsum": ("normalised", ["2,6,64"], "queries, Tq of [B H Tq Tk], but the sum"),
    "SdpaUnswapped": ("softmax", [X], "runs over H (axis 2 of [B T H d_k])"),
    "TimeFirstLayer": ("softmax", [X], "runs over the batch (axis 0 of [B T d_model])"),
    "TimeFirstByHand": ("softmax", [X], "runs over the batch (axis 2 of [T·H B B])"),
    "MaskMeetsHeads": ("coincidence", B8, "B of [B Tq Tk] meets H of [B H Tq Tk]"),
    "MaskMeetsHeadsAdded": ("coincidence", B8, "B of [B Tq Tk] meets H of [B H Tq Tk]"),
    "PaddingMeetsQueries": (
        "coincidence",
        ["6,6,512", "mask: bool B=6,T=6"],
        "B of [B T] meets Tq of [B H Tq Tk]",
    ),
    "SdpaMaskMeetsHeads": ("coincidence", B8, "B of [B Tq Tk] meets H of [B H Tq Tk]"),
    "MaskRepeated": ("fold", [X, "bool 2,6,6"], "samples of [B·H Tq Tk] are in another order"),
    "TorchMaskRepeated": ("fold", [X, "bool 2,6,6"], "of [B·H Tq Tk] are in another order"),
    "LayerInForward": ("untrained", [X], "Linear is made anew in each forward"),
    "AddedMaskMeetsQueries": (
        "coincidence",
        ["6,6,512", "attention_mask: 6,6"],
        "B of [B T] meets Tq of [B H Tq Tk]: it broadcasts only because both are 6 here",
    ),
    "HardCodedMaskMeetsHeads": (
        "coincidence",
        ["8,6,64", "bool 8,6,6"],
        "B of [B Tq Tk] meets H of [B H Tq Tk]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_ONES)
def test_a_wrong_module_is_named(name: str) -> None:
    kind, inputs, text = WRONG_ONES[name]
    lines = WRONG.read_text(encoding="utf-8").splitlines()
    start = lines.index(next(line for line in lines if line.startswith(f"class {name}(")))
    where = next(i for i, line in enumerate(lines[start:], start + 1) if line.endswith("# wrong"))
    findings = trace_module(WRONG, name, "", inputs).findings
    assert [finding.kind for finding in findings] == [kind] * len(findings)
    assert findings[0].source == f"wrong_modules.py:{where}"
    assert text in findings[0].text


def test_what_is_said_of_a_view_without_a_swap() -> None:
    (finding,) = trace_module(WRONG, "ViewNoTranspose", "", [X]).findings
    assert finding.message == (
        "wrong_modules.py:26: view of [B T d_model] as [B H T d_k] puts elements of different axes "
        "together: memory holds them in the order B, T, d_model; "
        "cut the last axis and then swap: view(B, T, H, d_k).transpose(1, 2)"
    )


@pytest.mark.parametrize(
    ("name", "inputs", "advice"),
    [
        ("MergeNoTranspose", [X], "swap back before heads are merged: transpose(1, 2)"),
        ("KeysByView", [X], "to swap axes, use transpose or permute"),
        ("FoldByView", [X], "cut the heads first: view(B, T, H, d_k).transpose(1, 2)"),
        ("TimeFirstLayer", [X], "give a time-first layer its input as [T B d_model]"),
        ("HeadsAttend", [X], "swap T and H before the product"),
        ("SoftmaxOverBatch", [X], "take the softmax along the keys"),
        ("MaskMeetsHeads", B8, "mask[:, None] makes [B 1 Tq Tk] of [B Tq Tk]"),
        ("MaskRepeated", [X, "bool 2,6,6"], "repeat_interleave(n_heads, 0)"),
    ],
)
def test_advice_fits_the_finding(name: str, inputs: list[str], advice: str) -> None:
    assert advice in trace_module(WRONG, name, "", inputs).findings[0].advice


def test_a_mask_for_the_batch_fails_where_sizes_differ() -> None:
    with pytest.raises(InputError) as caught:
        trace_module(WRONG, "MaskMeetsHeads", "", [X, "bool 2,6,6"])
    assert str(caught.value) == (
        f"{WRONG}:140: masked_fill of [B H Tq Tk] = [2 8 6 6] with [B Tq Tk] = [2 6 6]: B meets H: "
        "batch 2 ≠ heads 8; add the head axis: mask[:, None] is [B 1 Tq Tk] = [2 1 6 6]"
    )


# ── a file of one's own ──────────────────────────────────────────────────────────────────────


def written(tmp_path: Path, body: str, init: str = "d_model, n_heads") -> Path:
    """A module `A` with `forward(x, …)` as given."""
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\n"
        "class A(nn.Module):\n"
        f"    def __init__(self, {init}):\n"
        "        super().__init__()\n"
        "        self.h, self.q = n_heads, nn.Linear(d_model, d_model)\n\n"
        "    def cut(self, x):\n"
        "        return self.q(x).view(*x.shape[:2], self.h, -1).transpose(1, 2)\n\n"
        + "".join(f"    {line}\n" for line in body.splitlines()),
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize(
    ("body", "inputs", "says"),
    [
        (
            "def forward(self, x):\n    q = self.cut(x)\n    return q @ q",
            [X],
            ":14: matmul of [B H T d_k] = [2 8 6 64] with [B H T d_k] = [2 8 6 64]: the sum runs "
            "over d_k 64 and T 6, which must be equal; transpose(-2, -1) of the second would fit",
        ),
        (
            "def forward(self, x):\n    return self.q(x.transpose(1, 2))",
            [X],
            "the last axis is T 6, and the layer takes 512",
        ),
        (
            "def forward(self, x):\n    return self.cut(x).transpose(1, 2).view(*x.shape)\n",
            [X],
            None,
        ),
        (
            "def forward(self, x):\n    y = self.cut(x).contiguous()\n"
            "    return y.transpose(1, 2).view(*x.shape)",
            [X],
            ":14: view of [B T H d_k] = [2 6 8 64]: the sizes fit, but the elements do not lie in "
            "that order in memory (strides [3072 64 384 1]), which view needs: reshape copies "
            "them, as "
            "contiguous() before view does",
        ),
        (
            "def forward(self, x, y):\n    return torch.bmm(x, y.mT)",
            [X, "3,6,512"],
            "bmm of [B T d_model] = [2 6 512] with [3 d_model T] = [3 512 6]: B 2 ≠ 3",
        ),
        (
            "def forward(self, x):\n    return x.reshape(2, 6, 8, 60)",
            [X],
            "6144 elements cannot be [2 6 8 60], which are 5760: 8·60 = 480, and the last axis is "
            "512; project to 480, or into 8 of 64",
        ),
        (
            "def forward(self, x):\n    return x.reshape(2, 6, 4, 64)",
            [X],
            "4·64 = 256, and the last axis is 512; project to 256, or cut 512 into 8 heads of "
            "64, or "
            "into 4 of 128",
        ),
        (
            "def forward(self, x):\n    return self.cut(x).reshape(*x.shape[:2], 64)",
            [X],
            "6144 elements cannot be [2 6 64], which are 768; swap back before heads are merged: "
            "transpose(1, 2) makes [B T H d_k]",
        ),
        (
            "def forward(self, x):\n    q = self.cut(x)\n    return (q @ q.mT @ q).view(2, 8, 64)",
            [X],
            "view of [B H T d_k] = [2 8 6 64]: 6144 elements cannot be [2 8 64], which are 1024; "
            "swap",
        ),
        (
            "def forward(self, x):\n    q, k = x.chunk(2, -1)\n"
            "    return q.view(q.shape[0] * self.h, -1, 32)",
            [X],
            "(strides [3072 512 1]), which view needs: reshape copies them, as contiguous() before "
            "view does; but reshape of [B T 4·d_k] as [B·H T d_k/2] puts elements of different "
            "axes",
        ),
        (
            "def forward(self, x):\n    return self.cut(x).expand(-1, 4, -1, -1)",
            [X],
            ":13: expand of [B H T d_k] = [2 8 6 64]: H 8 cannot be expanded to 4: only an axis "
            "of 1 "
            "can; the projection holds 512 numbers a token, and 4 key/value heads of d_k 64 need "
            "4·64 = 256: 512 = 8·64; project to 256; or keep 512 with 8 key/value heads; or keep "
            "512 "
            "with d_k 128",
        ),
        (
            "def forward(self, x):\n    return x[:, :, :7].expand(2, 5, 9)",
            [X],
            "expand of [B T 7] = [2 6 7]: T 6 cannot be expanded to 5: only an axis of 1 can, an "
            "axis "
            "of 7 cannot be expanded to 9: only an axis of 1 can",
        ),
        (
            "def forward(self, x):\n    k, v = x.split(64, -1)\n    return k",
            [X],
            ":13: split of [B T d_model] = [2 6 512] gives 8 pieces of [B T d_k] = [2 6 64], and "
            "2 are "
            "taken: 512 = 8·64, and 2 pieces of 64 need 2·64 = 128; project to 128, or cut 512 "
            "into "
            "2 of 256: chunk(2, 2)",
        ),
        (
            "def forward(self, x):\n    a, b, c = x.chunk(2, 1)\n    return a",
            [X],
            "chunk of [B T d_model] = [2 6 512] gives 2 pieces of [B 3 d_model] = [2 3 512], and "
            "3 are "
            "taken: 6 = 2·3, and 3 pieces of 3 need 3·3 = 9",
        ),
        (
            "def forward(self, x):\n    a, b, c = x.unbind(1)\n    return a",
            [X],
            ":13: ValueError: too many values to unpack (expected 3",
        ),
        (
            "def forward(self, x):\n    q = self.cut(x)\n"
            "    return nn.functional.scaled_dot_product_attention(q, q, q, q.new_ones(2, 6, 6))",
            [X],
            ": B meets H: batch 2 ≠ heads 8; add the head axis: mask[:, None] is",
        ),
        (
            "def forward(self, x, mask):\n    q = self.cut(x)\n"
            "    return (q @ q.mT).masked_fill(mask, 0)",
            ["1,20,512", "mask: bool 2,1,1,10"],
            ":14: masked_fill of [B H Tq Tk] = [1 8 20 20] with [B 1 1 Tk] = [2 1 1 10]: batch 2 "
            "≠ 1, "
            "keys 10 ≠ 20; make the mask for the same 1 sequence, or mask[:1]; make it from the 20",
        ),
        (
            "def forward(self, x):\n    return x.view((5, -1))",
            [X],
            "view of [B T d_model] = [2 6 512]: 6144 elements cannot be [5 -1]",
        ),
        (
            "def forward(self, x):\n    return x.view(2, 6, 0, 512)",
            [X],
            "6144 elements cannot be [2 6 0 512]",
        ),
        (
            "def forward(self, x):\n    return torch.einsum('btd,bds->bts', x, x)",
            [X],
            "einsum of [B T d_model] = [2 6 512] with [B T d_model] = [2 6 512]: d is "
            "d_model 512 and "
            "T 6",
        ),
        (
            "def forward(self, x):\n    return torch.einsum('btd,btnd->bt', x, x)",
            [X],
            "einsum of [B T d_model] = [2 6 512] with [B T d_model] = [2 6 512]: 4 letters for "
            "3 axes",
        ),
        (
            "def forward(self, x):\n    return torch.einsum('btd,btd->bxd', x, x)",
            [X],
            "einsum of [B T d_model] = [2 6 512] with [B T d_model] = [2 6 512]: RuntimeError",
        ),
        (
            "def forward(self, x):\n    return torch.einsum('btt->b', x)",
            [X],
            ":13: einsum of [B T d_model] = [2 6 512]: RuntimeError",
        ),
        (
            "def forward(self, x):\n    return torch.cat([x, x[..., :5]], 1)",
            [X],
            "cat of [B T d_model] = [2 6 512] with [B T 5] = [2 6 5]: d_model 512 ≠ 5",
        ),
        (
            "def forward(self, x):\n    return self.nothing(x)",
            [X],
            ":13: AttributeError: 'A' object has no attribute 'nothing' in A.forward",
        ),
        (
            "def forward(self, x):\n    return x.transpose(1, 5)",
            [X],
            ":13: transpose of [B T d_model] = [2 6 512]: IndexError: Dimension out of range",
        ),
        (
            "def forward(self, x):\n    try:\n        x @ x\n    except RuntimeError:\n"
            "        raise ValueError('own words') from None",
            [X],
            ":16: ValueError: own words in A.forward",
        ),
        (
            "def forward(self, x):\n    return torch.arange(3).view(size=(2, 2))",
            [X],
            "view of [3] = [3]: RuntimeError: shape '[2, 2]' is invalid for input of size 3",
        ),
        ("def forward(self, x):\n    raise SystemExit(3)", [X], ":13: SystemExit: 3 in A.forward"),
        (
            "def forward(self, x, n):\n    return x",
            [X],
            "missing 1 required positional argument: 'n' in A.forward",
        ),
    ],
)
def test_failures_name_the_line_and_the_axes(
    tmp_path: Path, body: str, inputs: list[str], says: str | None
) -> None:
    path = written(tmp_path, body)
    if says is None:
        assert trace_module(path, "A", "512, 8", inputs).findings == ()
        return
    with pytest.raises(InputError) as caught:
        trace_module(path, "A", "512, 8", inputs)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", ["2,6,64", "T=6,B=2,64"])
def test_a_mask_that_torch_s_layer_refuses(order: str) -> None:
    inputs = [order, "mask: bool 2,6,6"]
    name = "TorchMask" if order[0] == "2" else "TorchMaskTimeFirst"
    with pytest.raises(InputError) as caught:
        trace_module(DATA / "failing_modules.py", name, "64, 4", inputs)
    own = "[B T d_model] = [2 6 64]" if order[0] == "2" else "[T B d_model] = [6 2 64]"
    assert (
        f": multi_head_attention_forward of {own}: mask [2 6 6] has one map for each of 2 seq"
        in (str(caught.value))
    )
    assert "mask.repeat_interleave(4, 0), not repeat" in str(caught.value)


def test_what_torch_s_layer_refuses_for_other_reasons(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "def forward(self, x, mask=None):\n    m = nn.MultiheadAttention(16, 4, batch_first=True)\n"
        "    return m(x, x[:, :, :8], x, attn_mask=mask)",
    )
    for inputs in (["2,3,16"], ["2,3,16", "mask: bool 3,3"]):
        with pytest.raises(InputError, match=r"own.py:14: .*: d_model 16 ≠ 2·d_k 8$"):
            trace_module(path, "A", "16, 4", inputs)


@pytest.mark.parametrize("name", ["GroupedTooWide", "FoldsAPiece"])
def test_a_module_that_fails_shows_the_steps_before(name: str) -> None:
    with pytest.raises(ModuleError) as caught:
        trace_module(DATA / "failing_modules.py", name, "64, 4", ["2,6,64"])
    trace = caught.value.trace
    lines = (DATA / "failing_modules.py").read_text(encoding="utf-8").splitlines()
    assert trace.failure is not None
    place, code = trace.failure
    assert code.endswith("# fails")
    assert lines[int(place.split(":")[1]) - 1].strip() == code
    assert f"failing_modules.py:{place.split(':')[1]}: " in str(caught.value)
    assert trace.steps[0].axes[:2] == ("B", "T")
    assert trace.findings == ()
    text = printed(trace, 150)
    assert "".join(text.split()).endswith("".join(f"fails here {place} {code}".split()))
    assert "no reshape regroups" not in text
    assert json.loads(json.dumps(module_trace_as_json(trace)))["failure"] == [place, code]


def test_the_program_prints_the_steps_and_then_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = f"{DATA / 'failing_modules.py'}:FoldsAPiece"
    given = ["shapes", "--module", module, "--init", "64, 4", "--input", "2,6,64"]
    for form, start in (([], "FoldsAPiece"), (["--json"], "{")):
        assert call([*given, *form]) == 2
        out, err = capsys.readouterr()
        assert out.startswith(start)
        assert "chunk" in out
        assert err.count("\n") == 1
        assert "reshape of [B T d_model] as [B·H T d_k] puts elements of different axes" in err


def test_heads_that_do_not_divide_in_a_view(tmp_path: Path) -> None:
    path = written(tmp_path, "def forward(self, x):\n    return self.cut(x)")
    with pytest.raises(InputError) as caught:
        trace_module(path, "A", "512, 10", [X])
    assert str(caught.value).startswith(
        f"{path}:10: view of [B T d_model] = [2 6 512]: 6144 elements cannot be [2 6 10 -1]: "
        "d_model 512 cannot be cut into 10 heads of equal width: 512 = 10·51 + 2; 512 = 2⁹; "
        "use 8 or 16 heads"
    )
    assert "--" not in str(caught.value).removeprefix(str(path))


def test_an_assertion_in_the_constructor_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from torch import nn\nclass A(nn.Module):\n    def __init__(self, d_model, n_heads):\n"
        "        super().__init__()\n        assert d_model % n_heads == 0\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError) as caught:
        trace_module(path, "A", "512, 10", [X])
    assert str(caught.value).startswith(
        f"{path}:5: AssertionError in A.__init__; d_model 512 cannot be cut into 10 heads"
    )
    with pytest.raises(InputError, match=r"A\(…\): missing a required argument: 'n_heads'$"):
        trace_module(path, "A", "512", [X])
    path.write_text(
        "from torch import nn\nclass A(nn.Module):\n    def __init__(self, d_model, n_heads):\n"
        "        self.w = nn.Linear(3, 3)\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError, match=r":4: AttributeError: cannot assign module before"):
        trace_module(path, "A", "512, 8", [X])


def test_constructors_of_all_forms(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from torch import nn\n"
        "class A(nn.Module):\n    def __init__(self, *sizes, **rest):\n"
        "        super().__init__()\n        self.w = nn.Linear(rest['dim'], rest['dim'])\n"
        "    def forward(self, x):\n        return self.w(x)\n",
        encoding="utf-8",
    )
    trace = trace_module(path, "A", "dim=16, flag=True, name='x', ratio=0.5", ["2,3,16"])
    assert axes(trace, "linear") == ["B T d_model"]
    with pytest.raises(InputError, match=r"takes \*sizes; name its arguments$"):
        trace_module(path, "A", "1, 2", [X])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"class A(:\n", ":1: invalid syntax"),
        (b"import nowhere_at_all\n", ":1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        (b"x = 1\n\nraise ValueError('a\\x1b[31mb\\nc')\n", r":3: ValueError: a\x1b[31mb"),
        (b"import sys\nsys.exit(1)\n", ":2: SystemExit: 1"),
        (b"raise ValueError\n", ":1: ValueError"),
        (b"x = '\xff'\n", "codec can't"),
        (b"\0", "null bytes"),
        (b"x = 3\n", " has no A; it has no torch modules"),
        (b"A = 3\n", " has something else than a torch module called A; it has no torch modules"),
        (
            b"from torch import nn\nclass Bb(nn.Module): pass\n",
            " has no A; its modules are Bb",
        ),
    ],
)
def test_files_that_hold_no_such_module(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "own.py"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        trace_module(path, "A", "", [X])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["own.py"]  # nothing was written beside it


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.py: no such file or directory$"):
        trace_module(tmp_path / "none.py", "A")


def test_a_neighbour_can_be_imported_and_its_prints_are_kept_from_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside_it.py").write_text("n = 3\n", encoding="utf-8")
    path = written(tmp_path, "def forward(self, x):\n    print('seen')\n    return x.view(-1)")
    path.write_text("import beside_it\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    before = list(sys.path)
    state = torch.get_rng_state()
    trace_module(path, "A", "16, 4", ["2,3,16"])
    out, err = capsys.readouterr()
    assert (out, err) == ("", "seen\n")
    assert sys.path == before
    assert torch.equal(torch.get_rng_state(), state)
    sys.modules.pop("beside_it")


def test_ops_outside_the_rules_do_not_stop_a_module(tmp_path: Path) -> None:
    body = (
        "def forward(self, x):\n"
        "    y = torch.fft.rfft(x, dim=-1)\n"
        "    z = x.sum(dim=(1, 2)) + x.max(2).values.amax(-1) + x.mean()\n"
        "    w = torch.max(x, x * 0) @ x[0, 0]\n"
        "    m = (x[0, 0] @ x[0, 0]) + torch.einsum('iij->j', x[:2, :2])[0]\n"
        "    f = x.softmax(-1).log_softmax(2)\n"
        "    r = x.sum(1, keepdim=True) + x\n"
        "    e = torch.einsum('btd,bsd', x, x)\n"
        "    s = torch.stack([x, x], 1).flip(0).roll(1, 0).tile(1, 1, 1, 1)\n"
        "    g = x.gather(1, torch.zeros(x.shape[0], 1, x.shape[2], dtype=torch.long))\n"
        "    k = torch.einsum(x, [0, 1, 2], x, [0, 3, 2], [0, 1, 3])\n"
        "    v = x.view(torch.int32)\n"
        "    return y, z, w, m, f, r, e, s, g, k, v"
    )
    trace = trace_module(written(tmp_path, body), "A", "16, 4", ["2,3,16"])
    assert trace.findings == ()
    assert len(axes(trace, "einsum")) == 3
    assert axes(trace, "stack") == ["B 2 T d_model"]


def test_torch_s_own_class_has_no_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("from torch.nn import MultiheadAttention\n", encoding="utf-8")
    (finding,) = trace_module(path, "MultiheadAttention", "16, 4", ["2,3,16"] * 3).findings
    assert (finding.kind, finding.source) == ("softmax", "own.py")
    mask = ["2,3,16", "2,5,16", "2,5,16", "key_padding_mask: bool 2,5"]
    assert trace_module(path, "MultiheadAttention", "16, 4, batch_first=True", mask).findings == ()


def test_a_module_that_calls_nothing(tmp_path: Path) -> None:
    trace = trace_module(written(tmp_path, "def forward(self, x):\n    return x"), "A", "16, 4",
                         ["2,3,16"])  # fmt: skip
    assert trace.steps == ()
    assert trace.notes == ("forward called no torch function on a tensor",)


def test_sizes_that_do_not_fit_in_memory_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "def forward(self, x):\n    return self.q(x)")
    with pytest.raises(InputError, match=r"the module at these sizes needs .* of memory"):
        trace_module(path, "A", "10000000, 8", ["2,6,10000000"])


# ── what is given as text ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("2,6,512", InputSpec(None, "float", ("B", "T", "width"), (2, 6, 512))),
        ("T=6, B=2, 512", InputSpec(None, "float", ("T", "B", "width"), (6, 2, 512))),
        ("mask: bool 2,1,6,6", InputSpec("mask", "bool", ("B", "1", "T", "T"), (2, 1, 6, 6))),
        ("bool 6,6", InputSpec(None, "bool", ("T", "T"), (6, 6))),
        ("bool 2,6", InputSpec(None, "bool", ("B", "T"), (2, 6))),
        ("bool Tq=5,Tk=7", InputSpec(None, "bool", ("T", "T"), (5, 7))),
        ("int 2,6", InputSpec(None, "int", ("B", "T"), (2, 6))),
        ("ids: int32 2,6", InputSpec("ids", "int32", ("B", "T"), (2, 6))),
        ("attention_mask: 2,6", InputSpec("attention_mask", "float", ("B", "T"), (2, 6))),
        ("attention_mask: long 6,6", InputSpec("attention_mask", "long", ("B", "T"), (6, 6))),
        ("attn_mask: 6,6", InputSpec("attn_mask", "float", ("T", "T"), (6, 6))),
        ("masked_x: 2,6,64", InputSpec("masked_x", "float", ("B", "T", "width"), (2, 6, 64))),
        ("x:7", InputSpec("x", "float", ("B",), (7,))),
        ("1,2,3,4,5", InputSpec(None, "float", ("1", "T", "", "", ""), (1, 2, 3, 4, 5))),
    ],
)
def test_inputs_are_read(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize(
    "text", ["", "2,x", "a b: 2,3", "2;3", "-=2", "float", "1e3", "complex 2,6"]
)
def test_inputs_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read; sizes are expected") as caught:
        parse_input(text)
    for kind in ("float32", "int64", "int32", "long", "bool"):
        assert kind in str(caught.value)


@pytest.mark.parametrize("text", ["0,2", "2,-6", "99999999"])
def test_inputs_of_no_size(text: str) -> None:
    with pytest.raises(InputError, match="a size must be between 1 and 10000000"):
        parse_input(text)


def test_arguments_are_read() -> None:
    assert parse_init("512, n_heads=8, p=-0.5, sizes=(1, 2), flag=None") == (
        [512],
        {"n_heads": 8, "p": -0.5, "sizes": (1, 2), "flag": None},
    )
    assert parse_init("") == ([], {})


@pytest.mark.parametrize("text", ["d=x", "**{}", ")", "d=__import__('os')", "(" * 999, "a=1)("])
def test_arguments_are_values_and_nothing_else(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read; arguments as in a call are expected"):
        parse_init(text)


# ── the method ───────────────────────────────────────────────────────────────────────────────

prime = st.sampled_from([2, 3, 5, 7])


@settings(max_examples=60, deadline=None)
@given(st.permutations([2, 3, 5, 7]), st.permutations(range(4)))
def test_swaps_splits_and_merges_keep_coordinates_apart(sizes: list[int], order: list[int]) -> None:
    whole = torch.arange(sizes[1]).view(1, -1, 1, 1).expand(*sizes)
    moved = whole.permute(*order)
    parts = separated(moved)
    assert parts is not None
    assert torch.equal(laid_out(parts, moved.shape), moved)
    assert separated(moved.flatten(0, 1)) is not None
    assert separated(moved.reshape(-1)) is not None


@settings(max_examples=60, deadline=None)
@given(st.permutations([2, 3, 5, 7]))
def test_a_view_across_axes_is_always_found(sizes: list[int]) -> None:
    b, t, h, d = sizes
    position = torch.arange(t).view(1, -1, 1).expand(b, t, h * d).contiguous()
    assert separated(position.view(b, t, h, d)) is not None
    assert separated(position.view(b, h, t, d)) is None
    assert separated(position.view(b * h, t, d)) is None
    merged = torch.arange(t).view(1, 1, -1, 1).expand(b, h, t, d).contiguous()
    assert separated(merged.view(b, t, h * d)) is None
    assert separated(merged.transpose(1, 2).reshape(b, t, h * d)) is not None


def test_a_constant_and_an_empty_tensor_vary_along_nothing() -> None:
    assert separated(torch.zeros(2, 0, dtype=torch.long)) == (None, None)
    assert separated(torch.full((2, 3), 4)) == (None, None)
    corner = torch.zeros(2, 2, dtype=torch.long)
    corner[1, 1] = 1
    assert separated(corner) is None


def test_a_tensor_never_seen_has_no_coordinates() -> None:
    assert Ledger().of(torch.zeros(2)) == Info()


@pytest.mark.parametrize(
    ("equation", "ranks", "letters"),
    [
        ("bqd, bkd -> bqk", [3, 3], (["bqd", "bkd"], "bqk")),
        ("bqd,bkd", [3, 3], (["bqd", "bkd"], "kq")),
        ("...d,...d->...", [3, 2], (["ΗΘd", "Θd"], "ΗΘ")),
        ("...d,d", [3, 1], (["ΗΘd", "d"], "ΗΘ")),
        ("ii->i", [2], None),
        ("ab,cd", [2], None),
        (["not", "text"], [2], None),
    ],
)
def test_equations_are_read(
    equation: object, ranks: list[int], letters: tuple[list[str], str] | None
) -> None:
    assert einsum_letters(equation, ranks) == letters


# ── as text and as JSON ──────────────────────────────────────────────────────────────────────


def printed(trace: ModuleTrace, width: int, **rest: bool) -> str:
    console = Console(width=width, force_terminal=True, color_system=None, markup=False)
    with console.capture() as captured:
        print_module_trace(trace, console, **rest)
    return captured.get()


def test_a_wide_console_has_one_line_an_op() -> None:
    trace = trace_module(RIGHT, "Reshape", "64, 4", ["2,6,64"])
    text = printed(trace, 150)
    lines = text.splitlines()
    assert lines[0].startswith("Reshape  ")
    assert lines[1] == "B 2  H 4  T 6  d_model 64"
    table = lines[5 : 5 + len(trace.steps)]
    assert [line.split()[0] for line in table] == [str(i + 1) for i in range(len(trace.steps))]
    assert "2×6×4×16" in table[1]
    assert "B T H d_k" in table[1]
    assert text.count("scores = q @ k.mT * self.d_k**-0.5") == 1
    assert lines[-1] == "no reshape regroups elements, and every softmax of scores runs along keys"
    assert "code" not in printed(trace, 150, source=False)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_console_folds_and_cuts_nothing(width: int) -> None:
    trace = trace_module(WRONG, "MaskMeetsHeads", "", B8)
    for source in (True, False):
        lines = printed(trace, width, source=source).splitlines()
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        for finding in trace.findings:
            assert f"warning {finding.source}" in text
            assert finding.text in text
            assert finding.advice in text
        assert "note: with another batch" in text


def test_hostile_names_are_shown_as_what_they_are() -> None:
    trace = ModuleTrace(
        "a\x1b[31m.py",
        "[/red]",
        (),
        (ModuleFinding("regroup", "a\n:1", "b\x1b", "c"),),
        ("d\n",),
        {},
        0,
    )
    text = printed(trace, 100)
    assert "\x1b" not in text
    assert "[/red]  a\\x1b[31m.py  0 parameters" in text
    assert "warning a\\n:1" in text


def test_nothing_is_called_right_that_was_not_established(tmp_path: Path) -> None:
    def last(body: str) -> str:
        trace = trace_module(written(tmp_path, body), "A", "16, 4", ["2,3,16"])
        return " ".join(printed(trace, 200).split("\n\n")[-1].split())

    good = "no reshape regroups elements"
    assert last("def forward(self, x):\n    return self.q(x)") == (
        f"{good}; no softmax of scores was seen"
    )
    assert last("def forward(self, x):\n    return (x @ x.mT).softmax(-2)") == (
        f"{good}; of 1 softmax, 1 could not be followed to a sum with the values: "
        "whether it runs along keys is not known"
    )
    assert last("def forward(self, x):\n    return (x @ x.mT).softmax(-1) @ x") == (
        f"{good}, and every softmax of scores runs along keys"
    )


def test_json_holds_all_fields() -> None:
    trace = trace_module(WRONG, "HeadsAttend", "64, 4", ["2,6,64"])
    found = json.loads(json.dumps(module_trace_as_json(trace)))
    assert (found["format"], found["version"]) == ("attnviz.module", 1)
    assert found["class_name"] == "HeadsAttend"
    assert found["findings"][0]["kind"] == "softmax"
    assert found["steps"][0]["axes"] == ["B", "T", "d_model"]
    assert found["sizes"] == {"B": 2, "H": 4, "T": 6, "d_model": 64}


def test_the_samples_really_differ_from_what_they_should_be() -> None:
    """The wrong modules are wrong: what a sample's tokens get depends on the other samples."""
    namespace: dict[str, object] = {}
    exec(compile(WRONG.read_text(encoding="utf-8"), str(WRONG), "exec"), namespace)
    torch.manual_seed(0)
    x = torch.randn(2, 6, 16)
    for name in ("SoftmaxOverBatch", "TimeFirstLayer", "TimeFirstByHand"):
        module_class = namespace[name]
        assert isinstance(module_class, type)
        module: nn.Module = module_class(16, 4).eval()
        other = x.clone()
        other[1] += 1
        assert not torch.allclose(module(x)[0], module(other)[0])
