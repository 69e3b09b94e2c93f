"""The numbers of the residual benchmark against those worked out by hand, and its settings."""

import pytest

from benchmarks._residual_plot import draw
from benchmarks._residual_runs import COMMON, TASKS, Evaluated, Result, run_name
from benchmarks.residual import fisher_p, pooled_p, rows
from dovetail.config.load import load
from dovetail.core.stats import Rate


def rate(successes: int, episodes: int) -> Rate:
    return Rate(successes=successes, episodes=episodes)


def result(start: int, *later: int) -> Result:
    found = [Evaluated(robot_s=150.0 * i, successes=one, episodes=10) for i, one in enumerate((start, *later))]
    return Result(
        task="peg", seed=11, method="residual, person", start=found[0], later=tuple(found[1:]), human_share=0.1
    )


def test_fisher_by_hand():
    # 3 successes among 4 episodes; 2 episodes of each: k = 1 in comb(3, 1) comb(1, 1) = 3 of comb(4, 2) = 6 ways
    assert fisher_p(rate(1, 2), of=rate(2, 2)) == pytest.approx(0.5)
    assert fisher_p(rate(2, 2), of=rate(1, 2)) == pytest.approx(1.0)
    # 0 of 5 against 5 of 5: one of comb(10, 5) = 252 ways
    assert fisher_p(rate(0, 5), of=rate(5, 5)) == pytest.approx(1 / 252)


def test_pooled_test_counts_all_evaluations():
    # 0 of 10 against 10 of 10 is 1 of comb(20, 10) = 184756 ways; there are 3 evaluations
    assert pooled_p([result(10, 10, 0), result(5, 9)]) == pytest.approx(3 / 184756)
    assert pooled_p([result(5, 5, 9), result(5, 6)]) == 1.0


def test_rows_have_the_rate_of_all_seeds_and_the_aim():
    found = {row.name: row for row in rows([result(5, 8, 10), result(3, 9, 8)])}
    end = found["peg, residual, person, 2 seeds: end"]
    assert (end.value, end.samples, end.met) == (0.9, (1.0, 0.8), False)
    assert found["peg, residual, person, 2 seeds: start"].value == 0.4
    assert found["peg, residual, person, seed 11: after 150 s"].met is None


def test_results_survive_their_file():
    from dataclasses import asdict

    assert Result.from_json(asdict(result(5, 8))) == result(5, 8)
    assert run_name("peg", 11, "residual, no person") == "peg-11-residual-no-person"


def test_plot_has_a_curve_for_each_seed_also_with_one_task_only(tmp_path):
    draw([result(5, 8, 9), result(4, 7, 9)], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("task", TASKS)
def test_settings_of_every_method_are_valid_and_have_600_s(task):
    of = TASKS[task]
    base = load([of.base[0]], [*of.base[1:]])
    residual = load([of.residual], ["policy.base.run=runs/x", *COMMON])
    for recipe, *settings in of.others.values():
        config = load([recipe], [*settings, *COMMON])
        assert config.run.env_steps == residual.run.env_steps == 6000
        assert (config.run.demos, config.run.demo_noise) == (base.run.demos, base.run.demo_noise)
        assert config.task == residual.task == base.task
        assert config.run.eval_noise == residual.run.eval_noise or task == "pick"
