"""`attnviz shapes`: the tensor flow, step by step, for any size, in the memory of a small one."""

from __future__ import annotations

from collections.abc import Mapping

from attnviz.cli.options import InputFlags, LayerFlags, MaskFlags, SourceFlags, spread
from attnviz.cli.shapes_flags import ModuleFlags, SizeFlags, TableFlags
from attnviz.errors import ConfigError

EXAMPLES = """Examples:

attnviz shapes "The cat sat on the mat." --d-model 64 --n-heads 4 --causal

attnviz shapes --d-model 65536 --n-heads 512 --d-k 128 --len 1000000"""


@spread
def shapes(
    inputs: InputFlags,
    layer: LayerFlags,
    origin: SourceFlags,
    masking: MaskFlags,
    sizes: SizeFlags,
    own: ModuleFlags,
    table: TableFlags,
) -> None:
    """Show every tensor on the way through the layer: its shape, cost and meaning."""
    form = table.format
    text = {"TEXT": inputs.text, "--file": inputs.file}
    own_layer = dict.fromkeys(layer.given, True)
    if own.module is not None:
        others = {**text, "--len": sizes.length, "--model": sizes.model, "--vs": table.versus}
        others |= {**own_layer, "--weights": origin.weights}
        _require_one("--module", others, "what is traced")
        from attnviz.cli.module_shapes import print_module

        print_module(own, form, table.source)
        return
    if own.init is not None or own.inputs_of_module:
        raise ConfigError("--init and --input go with --module FILE.py:CLASS")
    sizes.check()
    if sizes.length is not None:
        keys = {"--keys": inputs.keys, "--key-file": inputs.key_file}
        _require_one("--len", {**text, "--pad-to": inputs.pad_to}, "the number of queries")
        _require_one("--key-len" if sizes.key_length else "--len", keys, "the keys")
    if sizes.model is not None:
        _require_one("--model", text, "the queries")
        _require_one("--model", own_layer, "the layer")
    if origin.weights is not None:
        _require_one("--weights", {"--model": sizes.model}, "the layer")
        if table.versus is not None:
            raise ConfigError("--vs compares layers from flags and models; it has no --weights")
    elif origin.given:
        raise ConfigError(f"{origin.given[0]} goes with --weights FILE")
    from attnviz.cli.shape_flows import Subject, print_both, print_flow

    subject = Subject(inputs, layer, origin, masking, sizes, as_table=form == "table")
    if table.versus is None:
        print_flow(subject.flow(), form, table.source, table.expand)
    else:
        print_both(subject.flow(), subject.changed(table.versus).flow())


def _require_one(flag: str, others: Mapping[str, object], what: str) -> None:
    """Raise `ConfigError` that names both flags if one of `others` was given with `flag`."""
    for other, value in others.items():
        if value:
            raise ConfigError(f"{flag} and {other} both give {what}; give one of them")
