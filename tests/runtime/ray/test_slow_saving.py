"""Saving a checkpoint never blocks acting, however long it takes."""

import pytest

from support.ray_world import LAYOUT, world

pytestmark = pytest.mark.extended


def test_arms_go_on_while_the_learner_saves(tmp_path):
    with world(tmp_path, layout=LAYOUT.replace("RunsOutOfMemory", "SavesSlowly")) as run:
        run.start()
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        run.give("save slowly")
        run.wait_until(lambda: run.was_taken("save slowly"), what="the learner saves")
        before = len(run.events("checkpoint"))
        run.wait_for_episodes(5)  # all of them during this one save
        assert len(run.events("checkpoint")) == before
        run.give("save")
        run.wait_until(lambda: len(run.events("checkpoint")) > before, what="the checkpoint is saved")
