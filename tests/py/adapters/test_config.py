"""Where adapters and their settings come from; the ledger's faults replay from their seed."""

from __future__ import annotations

import pytest

from trex_client import ledger
from trex_client.adapters import (
    BaseAdapter,
    ConfigError,
    Delivered,
    Secret,
    build_adapter,
    config,
    read_config,
)
from trex_client.adapters.none import NoneAdapter

pytestmark = pytest.mark.criterion("ac-0050")


def test_without_a_file_there_is_no_consumer(tmp_path):
    assert read_config(environ={}) == {"kind": "none"}
    assert isinstance(build_adapter("inst", environ={}), NoneAdapter)
    file = tmp_path / "a.toml"
    file.write_text('kind = "none"\n')
    assert isinstance(
        build_adapter("inst", environ={"TREX_ADAPTER_CONFIG": str(file)}), NoneAdapter
    )
    with pytest.raises(ConfigError):
        read_config(tmp_path / "missing")
    file.write_bytes(b"\xff\xfe canary")
    with pytest.raises(ConfigError):
        read_config(file)


class Mine(BaseAdapter):
    def __init__(self, instance_key, settings):
        self.made_of = (instance_key, settings)

    async def deliver(self, claim, context):
        return Delivered()


class Entry:
    def __init__(self, loaded):
        self.loaded = loaded

    def load(self):
        if self.loaded is None:
            raise ModuleNotFoundError("canary")
        return self.loaded


def raises(key, settings):
    raise KeyError(settings["token"])


def test_adapters_of_ones_own_are_found_by_their_entry_point(monkeypatch):
    asked = []

    def entry_points(*, group, name):
        asked.append((group, name))
        made = {
            "mine": Entry(Mine),
            "broken": Entry(lambda key, settings: "no adapter"),
            "raises": Entry(raises),
            "missing": Entry(None),
        }.get(name)
        return [made] if made else []

    monkeypatch.setattr(config, "entry_points", entry_points)
    made = build_adapter("inst", {"kind": "mine", "anything": 7})
    assert isinstance(made, Mine)
    assert made.made_of == ("inst", {"kind": "mine", "anything": 7})
    for kind, said in {
        "broken": "didn't return an adapter",
        "raises": "raised KeyError",
        "missing": "raised ModuleNotFoundError",
        "unheard of": "none of http, none, postgres",
    }.items():
        with pytest.raises(ConfigError, match=said) as caught:
            build_adapter("inst", {"kind": kind, "token": "canary"})
        assert "canary" not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None
    assert asked[0] == ("trex.adapters", "mine")


def test_unknown_settings_are_refused():
    with pytest.raises(ConfigError):
        build_adapter("inst", {"kind": "none", "url": "https://ledger.example/"})


def test_a_secret_shows_itself_to_nobody(tmp_path):
    secret = Secret("canary")
    assert "canary" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "canary"
    with pytest.raises(TypeError):
        __import__("pickle").dumps(secret)
    file = tmp_path / "token"
    file.write_text("canary\n")
    settings = config.Settings.of({"a": {"file": str(file)}, "b": {"env": "B"}}, {"B": "x"})
    assert settings.secret("a") == secret
    assert settings.secret("b") == Secret("x")
    file.write_text("")
    with pytest.raises(ConfigError):
        config.Settings.of({"a": {"file": str(file)}}, {}).secret("a")


def test_faults_replay_from_their_seed():
    def faults(seed):
        return ledger.Faults(seed=seed, unavailable=0.3, lying=0.3, refused=0.2)

    def story(seed):
        return [
            (faults(seed).for_key(f"k{key}"), faults(seed).for_call(f"k{key}", number))
            for key in range(200)
            for number in (1, 2)
        ]

    assert story(7) == story(7) != story(8)
    calls = [call for _, call in story(7)]
    assert 80 < calls.count("unavailable") < 160
    assert 80 < calls.count("lying") < 160
    assert faults(7).for_call("k1", 4) is None
