"""usage: device_explain.py [PART OF A NAME]...

What the package says of a program: dtorch.explain(), dtorch.plot_mesh(), warnings of heavy moves.

The session is a private cluster of one node whose device stands for eight."""

import os
import sys
import warnings
import xml.etree.ElementTree
from typing import Any

os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "8"

import torch  # noqa: E402  (the number of devices is read when the session begins)
from torch import nn  # noqa: E402

import devicetest  # noqa: E402
import dtorch  # noqa: E402
from dtorch import DeviceMesh, Partial, Replicate, Shard  # noqa: E402
from dtorch._explain import MoveWarning, end_step  # noqa: E402

suite = devicetest.Suite("device explain", devicetest.arguments())
R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()
FILE = os.path.basename(__file__)


def two() -> DeviceMesh:
    return DeviceMesh("cuda", [0, 1])


def elements(svg: str) -> list[Any]:
    """Of a picture, which must be well-formed XML."""
    return list(xml.etree.ElementTree.fromstring(svg).iter())


def an_operator_is_explained() -> None:
    """Rule and its row, placements, line, no move."""
    a = dtorch.distribute_tensor(torch.ones(8, 4), two(), [S0])
    b = dtorch.distribute_tensor(torch.ones(4, 6), two(), [R])
    table = dtorch.explain(lambda: a @ b)
    assert [step.operator for step in table] == ["aten::mm"], table
    step = table[0]
    assert step.rule.startswith("aten::mm(T, T)") and step.rule.endswith(": i"), step.rule
    assert step.inputs == "float32 (8, 4) [Shard(0)]; float32 (4, 6) [Replicate()]", step.inputs
    assert step.outputs == "float32 (8, 6) [Shard(0)]" and step.mesh == (2,) and step.moves == () and step.moved_bytes == 0, step
    assert FILE in step.line and step.bytes == 4 * (32 + 24 + 48), step
    assert torch.equal(table.result.to_torch(), torch.full((8, 6), 4.0))


def moves_stand_with_their_operator() -> None:
    """What had to be brought, settled and written back, by which algorithm, how many bytes; what the program asked for."""
    torch.manual_seed(0)
    whole = torch.randn(8, 4)
    x = dtorch.distribute_tensor(whole, two(), [S0])

    def work() -> torch.Tensor:
        total = x.sum()     # Partial
        root = total.exp()  # settles it
        return root + x.redistribute(two(), [R]).sum()

    table = dtorch.explain(work)
    devicetest.expect_same(True, torch.allclose(table.result.to_torch(), whole.sum().exp() + whole.sum(), rtol=1e-5))
    by = {step.operator: step for step in table}
    settle = by["aten::exp"].moves
    assert len(settle) == 1 and settle[0].source == "[Partial(sum)]" and settle[0].target == "[Replicate()]", table
    assert settle[0].algorithm == "all-reduce" and settle[0].bytes == 4 and settle[0].tensor == "float32 ()", settle
    asked = by["dtorch::redistribute"]
    assert [move.algorithm for move in asked.moves] == ["all-gather"] and asked.moved_bytes == 64 and FILE in asked.line, asked
    assert table.moved_bytes == 68 and [move.bytes for move in table.moves] == [64, 4], table.moves
    assert all(move.planned_us > 0 for move in table.moves)
    text = repr(table)
    assert "moved by" in text and "all-reduce" in text and "2 moves of 68 bytes" in text, text
    assert sum(e.tag.endswith("rect") for e in elements(table.svg())) >= len(table) + 2
    assert "all-gather" in table.svg() and table._repr_svg_() == table.svg()


def one_device_and_errors() -> None:
    """Without a mesh no rule is asked; what the function raises is raised, and ends the noting."""
    x = torch.ones(3, device="dtorch")
    table = dtorch.explain(torch.add, x, x)
    assert [(s.operator, s.rule, s.inputs) for s in table] == [("aten::add.Tensor", "", "float32 (3,) on 0; float32 (3,) on 0")], table
    try:
        dtorch.explain(lambda: x.view(7))
    except RuntimeError:
        assert len(dtorch.explain(lambda: None)) == 0
        return
    raise AssertionError("a wrong view is none")


def nested_ones_are_refused() -> None:
    try:
        dtorch.explain(lambda: dtorch.explain(lambda: None))
    except dtorch.Error as error:
        assert "already" in str(error), error
        return
    raise AssertionError("an explain within an explain")


def parts_are_plotted_where_they_are() -> None:
    """What the picture says each device holds is what it holds, whatever the layout."""
    one, many = DeviceMesh("cuda", [3, 1, 2]), DeviceMesh("cuda", [[0, 1, 2], [5, 4, 3]], mesh_dim_names=("dp", "tp"))
    value = torch.arange(12 * 7.0).reshape(12, 7)
    for mesh, layouts in ((one, ([S0], [S1], [R], [P], [Shard(0, unit=4)], [Shard(0, groups=2)])),
                          (many, ([S0, S0], [S0, S1], [S1, S0], [R, S1], [S1, P], [S0, R], [R, R]))):
        for placements in layouts:
            x = dtorch.distribute_tensor(value, mesh, placements)
            picture, held = dtorch.plot_mesh(x), x.shards()
            assert set(picture.parts) == set(held)
            for device, part in picture.parts.items():
                want = value
                for dim, intervals in enumerate(part):
                    index = torch.cat([torch.arange(*span) for span in intervals]) if intervals else torch.empty(0, dtype=torch.int64)
                    want = want.index_select(dim, index)
                assert want.shape == held[device].shape, (placements, device, part, held[device].shape)
                assert any(p.is_partial() for p in placements) or torch.equal(want, held[device]), (placements, device)
            assert len(elements(picture.svg())) > len(held)
    text = repr(dtorch.plot_mesh(dtorch.distribute_tensor(value, many, [S0, P])))
    assert text.splitlines() == [
        "float32 (12, 7) on dp=2: Shard(dim=0), tp=3: Partial(sum)",
        "dtorch:0 [0:6, :] P(sum)   dtorch:1 [0:6, :] P(sum)   dtorch:2 [0:6, :] P(sum)",
        "dtorch:5 [6:12, :] P(sum)  dtorch:4 [6:12, :] P(sum)  dtorch:3 [6:12, :] P(sum)"], text
    assert "the whole of it" in repr(dtorch.plot_mesh(torch.ones(2, device="dtorch")))


def heavy_moves_are_warned_of() -> None:
    """Once, with the line, at the end of an optimizer's step; light ones and other steps are not."""
    layer = nn.Linear(4, 4).to("dtorch")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    big = dtorch.distribute_tensor(torch.ones(1024, 1024), two(), [S0])
    small = dtorch.distribute_tensor(torch.ones(8, 8), two(), [S0])
    end_step()  # what stands above is none of the steps'

    def told(step: Any) -> list[Any]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            step()
            layer(torch.ones(1, 4, device="dtorch")).sum().backward()
            optimizer.step()
        return [w for w in seen if w.category is MoveWarning]

    assert told(lambda: small.redistribute(two(), [R])) == []
    line = sys._getframe().f_lineno + 1
    first = told(lambda: (big + 1).redistribute(two(), [R]))
    assert len(first) == 1 and first[0].lineno == line and first[0].filename.endswith(FILE), [(w.filename, w.lineno) for w in first]
    said = str(first[0].message)
    assert "float32 (1024, 1024) [Shard(0)] to [Replicate()]: all-gather brings 2097152 bytes" in said and FILE in said, said
    assert told(lambda: (big + 1).redistribute(two(), [R])) == []  # it was told


CHECKS = [an_operator_is_explained, moves_stand_with_their_operator, one_device_and_errors, nested_ones_are_refused,
          parts_are_plotted_where_they_are, heavy_moves_are_warned_of]

if __name__ == "__main__":
    for function in CHECKS:
        suite.check(function.__name__.replace("_", " "), function)
    sys.exit(suite.finish())
