"""The driver's threads that relay STOP go on after any error."""

from dovetail.live.run_stop import RunStop
from dovetail.live.stop_relay import RelayedStop
from dovetail.runtime.ray.driver import stop_relays
from dovetail.runtime.ray.driver.stop_relays import StopRelays
from support.waiting import wait_until


def test_stop_is_relayed_after_errors_of_any_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(stop_relays, "_RETRY_S", 0.01)
    folder = tmp_path / "far"
    folder.mkdir()
    errors = [ValueError("the reply has another length"), OSError("no descriptor left"), KeyError("x")]
    with RunStop.create(tmp_path) as stop, RunStop.create(folder, arm="far") as far:
        relayed = RelayedStop(far)

        def call(self, handle, message):
            if errors:
                raise errors.pop()
            return relayed.exchange(message)

        monkeypatch.setattr(StopRelays, "_call", call)
        relays = StopRelays(stop)
        relays.add("far", None)
        stop.press("test")
        wait_until(lambda: far.emergency)
        assert errors == []
        relays.close()
