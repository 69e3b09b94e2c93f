"""The output of `dovetail bench`, and that every bench can be loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main as benchmarks_main
from benchmarks.registry import BENCHMARKS
from dovetail.bench._control_loops import plain_loop
from dovetail.bench.registry import BENCHES, Entry, load_bench
from dovetail.bench.rows import Row, at_least, at_most
from dovetail.bench.vla import cpu, models, robots
from dovetail.cli import _bench
from dovetail.cli.main import main


def _fake_bench(*, quick: bool) -> Iterator[Row]:
    yield at_least("speed", 50.0 if quick else 500.0, "steps/s", 100, baseline="plain", ratio=2.0)
    yield at_most("errors", 0.0, "", 0.2)


def test_rows_are_shown_and_written_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bench, "load_bench", lambda entry: _fake_bench)
    file = tmp_path / "rows.json"
    fakes = {"fake_one": Entry("-", ""), "fake_two": Entry("-", "")}
    _bench.bench(["fake"], quick=True, json_file=file, benches=fakes)  # a prefix names both
    shown = capsys.readouterr().out
    for text in ("speed", "plain", "2.00", "≥ 100", "✗", "≤ 0.2", "✓"):
        assert text in shown
    found = json.loads(file.read_text())
    assert [row["bench"] for row in found["rows"]] == ["fake_one"] * 2 + ["fake_two"] * 2
    assert found["rows"][0] == {
        "bench": "fake_one",
        "name": "speed",
        "value": 50.0,
        "unit": "steps/s",
        "baseline": "plain",
        "ratio": 2.0,
        "aim": 100,
        "met": False,
    }
    assert found["quick"] is True
    assert {"python", "cpu", "cores"} <= set(found["machine"])
    assert "commit" in found


def test_unknown_bench_and_missing_folder_are_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["bench", "smi"]) == 2
    assert "Did you mean 'sim'?" in capsys.readouterr().err
    assert main(["bench", "sim", "--json", str(tmp_path / "no" / "x.json")]) == 2
    monkeypatch.setenv("PYTHONPATH", "")
    assert benchmarks_main(["learn_lft"]) == 2
    assert "Did you mean 'learn_lift'?" in capsys.readouterr().err
    assert benchmarks_main([]) == 0
    assert "\narms " in capsys.readouterr().out


@pytest.mark.parametrize("entry", [*BENCHES.values(), *BENCHMARKS.values()], ids=[*BENCHES, *BENCHMARKS])
def test_every_bench_can_be_loaded(entry: Entry) -> None:
    assert callable(load_bench(entry))


def test_plain_loop_counts_its_ticks() -> None:
    found = plain_loop(200, seconds=0.2)
    assert found["ticks"] == 40
    assert 0.0 <= found["lateness_p50_ms"] <= found["lateness_p99_ms"] <= found["lateness_max_ms"]


def test_vla_on_a_cpu_compares_a_tiny_model_with_stock_transformers() -> None:
    rows = {row.name: row for row in cpu.network_rows(num=3)}
    assert rows["CPU, tiny pi0: ours, eager"].value > 0.0
    assert rows["CPU, tiny smolvla: ours, eager"].value > 0.0
    assert rows["CPU, tiny pi0: ours against stock: difference of actions"].value < 1e-3  # percent


def test_vla_act_on_a_cpu_measures_a_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    rows = {row.name: row for row in load_bench(BENCHES["vla_act"])(quick=True)}
    assert rows["act, small, CPU: weights"].value == pytest.approx(1.0, abs=0.5)
    assert len(rows["act, small, CPU, float32"].samples) == 3


def test_vla_train_on_a_cpu_steps_a_tiny_model_and_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    rows = {row.name: row for row in load_bench(BENCHES["vla_train"])(quick=True)}
    assert not [name for name in rows if "skipped" in name]
    trained = {name.partition(":")[0]: row.value for name, row in rows.items() if row.unit == "million"}
    assert trained["ours, LoRA of rank 16, recomputed"] < trained["ours, all weights, bfloat16"] < 0.6


def test_vla_without_transformers_keeps_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    names = [row.name for row in cpu.network_rows(num=3)]
    assert names[2].startswith("stock transformers skipped: ")
    del names[2]
    assert names == [f"CPU, tiny {name}: ours, eager" for name in ("pi05", "smolvla", "pi0")]


@pytest.mark.extended
def test_vla_through_the_inference_process_gives_the_actions_of_the_policy() -> None:
    rows = {row.name.removeprefix("CPU, tiny pi0: "): row for row in cpu.shared_memory_rows(num=3)}
    through = "images of 56 x 56 in shared memory to actions in shared memory"
    call = rows["policy call in one process, arrays to arrays"]
    assert rows[f"{through}: difference of actions"].value == 0.0
    assert rows[f"{through}: more than the policy call"].value == pytest.approx(rows[through].value - call.value)
    assert len(call.samples) == len(rows[through].samples) == 3


def test_vla_imports_no_simulator_no_ray_and_no_video() -> None:
    """It measures on machines that have torch, numpy and pydantic only."""
    code = (
        "import sys\n"
        "for name in ('mujoco', 'ray', 'av', 'pyarrow', 'nicegui', 'tensorboard', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "import dovetail.bench.vla.chunks, dovetail.bench.vla._inference, dovetail.robot_host.inference_process"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.extended
def test_vla_takes_all_its_weights_while_it_acts() -> None:
    """A tiny pi0 on a CPU. Whether no tick is lost depends on the machine's load, so this test does not say it."""
    from dovetail.bench.vla._weights import taken_while_acting

    network = models.make_network(models.TINY, device=torch.device("cpu"), dtype=torch.float32)
    found = taken_while_acting(network, device="cpu", seconds=6.0, num_versions=2)
    num_bytes = 4 * sum(parameter.numel() for parameter in network.parameters())
    assert found["version_gb"] == pytest.approx(num_bytes / 1e9, rel=0.02)
    assert 1 <= found["weights_swaps"] <= 2
    rows = {row.name.partition(": ")[2]: row for row in robots.new_weight_rows(found)}
    assert rows["versions taken"].value == found["weights_swaps"]
    assert rows["longest load"].value > 0.0 and found["ticks"] == 300
