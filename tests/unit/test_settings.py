"""Settings: four sources in order, and one line for whatever is wrong."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.errors import ConfigurationError
from service.learning.identity import Identity, Places
from service.settings import load as loading
from service.settings.load import load, model_settings, parse_start_at


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PERCEPTRON_CONFIG", "PERCEPTRON_TOPICS"):
        monkeypatch.delenv(name, raising=False)


def test_flag_over_environment_over_file_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("perceptron.toml").write_text(
        'topics = ["f"]\n[kafka]\nbootstrap_servers = "file:1"\ngroup_id = "file"\n[http]\nport = 1\n'
    )
    monkeypatch.setenv("PERCEPTRON_KAFKA__BOOTSTRAP_SERVERS", "environment:1")
    monkeypatch.setenv("PERCEPTRON_HTTP__PORT", "2")
    settings = load(None, {"http": {"port": 3}})
    assert settings.http.port == 3
    assert settings.kafka.bootstrap_servers == "environment:1"
    assert settings.kafka.group_id == "file"
    assert settings.redis.url == "redis://localhost:6379/0"
    assert settings.topics == ["f"]


def test_model_sections_are_defaults_for_each_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("x.toml").write_text(
        'topics = ["a", "b"]\n[model]\neta = 0.5\nlabels = ["no", "yes"]\n[models.b]\nfeatures = "hashed"\nbits = 18\n'
    )
    monkeypatch.setenv("PERCEPTRON_CONFIG", "x.toml")
    settings = load(None, {})
    assert settings.models["a"].identity().eta == settings.models["b"].identity().eta == 0.5
    assert settings.models["a"].labels == ("no", "yes")
    assert settings.models["b"].identity().bits == 18
    assert settings.models["b"].identity().max_columns is None


def test_the_environment_reaches_model_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCEPTRON_TOPICS", "a, b")
    monkeypatch.setenv("PERCEPTRON_MODEL__FEATURES", "positional")
    monkeypatch.setenv("PERCEPTRON_MODEL__DIMENSION", "20")
    monkeypatch.setenv("PERCEPTRON_MODEL__LABELS", "[false, true]")
    settings = load(None, {})
    assert settings.topics == ["a", "b"]
    assert settings.models["b"].dimension == 20
    assert settings.models["a"].labels == (False, True)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('topics = ["a b"]', "topics: 'a b' is no topic name"),
        ('topics = ["^("]', "topics: '^(' is no regular expression"),
        ('topics = ["a"]\n[model]\neta = true', "model.eta: expected a number, got true"),
        ("topic = 1", "topic: there is no such setting: perhaps topics"),
        ("[kafka]\nbroker = 1", "kafka.broker: there is no such setting"),
        ("[kafka]\ngroupid = 1", "kafka.groupid: there is no such setting: perhaps group_id"),
        ("[http]\nport = 99999", "http.port: expected a number less than or equal to 65535, got 99999"),
        ("[http]\nport = 1.5", "http.port: expected a whole number, got 1.5"),
        ("[http]\nport = 2030-01-01", 'http.port: expected a whole number, got "2030-01-01"'),
        ('learn = "maybe"', 'learn: expected true or false, got "maybe"'),
        ("[kafka]\ngroup_id = 5", "kafka.group_id: expected a string"),
        ('[kafka]\ngroup_id = ""', 'kafka.group_id: expected a text, got ""'),
        ("kafka = 5", "kafka: expected a table"),
        ("models = 5", "models: expected a table, got 5"),
        ('[redis]\nurl = "localhost"', "redis.url"),
        ('topics = ["a"]\n[models.a]\neta = 0', "models.a.eta: expected a number greater than 0, got 0"),
        ('topics = ["a"]\n[model]\neta = nan', "model.eta"),
        ('topics = ["a"]\n[model]\nfeatures = "positional"', "needs dimension"),
        ('topics = ["a"]\n[model]\ndimension = 3', 'takes no dimension (it belongs to features = "positional")'),
        ('topics = ["a"]\n[model]\nlabels = "ok,fail"', 'labels: expected a list, such as ["no", "yes"]'),
        ('topics = ["a"]\n[model]\nlabels = [1, 1]', "the labels must differ: 1 is there twice"),
        ('topics = ["a"]\n[model]\nlabels = [1, 2, 3, 2.0]', "the labels must differ: 2.0 is there twice"),
        ('topics = ["a"]\n[model]\nlabels = [1]', "model.labels: expected from 2 to 1,000 labels, got 1"),
        (
            f'topics = ["a"]\n[model]\nlabels = {[*range(1001)]}',
            "model.labels: expected from 2 to 1,000 labels, got 1,001",
        ),
        (
            'topics = ["a"]\n[model]\nlabels = [1, 2, 3]\nrule = "half-step"',
            'model: rule = "half-step" is of two labels: for 3 take rule = "perceptron" or "lms" or',
        ),
        ('topics = ["a"]\n[model]\nlabels = [1, 2, 3]\nmargin = 1', "margin is of two labels: with 3 there is none"),
        ('topics = ["a"]\n[model]\nlabels = [1, 2, 3]\nstart = "x"', 'start: with 3 labels it is "zero" or "random'),
        ('topics = ["a"]\n[model]\nrule = "svm"', "model.rule"),
        ('topics = ["a"]\n[model]\naverage = "mean"', "model.average: expected false, true or 'recent'"),
        ("[model.pts]\neta = 1", "model.pts: there is no such setting: perhaps [models.pts]"),
        ("[model.evnt]\nid = 1", "model.evnt: there is no such setting: perhaps event"),
        ('topics = ["a"]\n[models.a.pts]\neta = 1', "models.a.pts: there is no such setting"),
        (
            'topics = ["a"]\n[model]\nlabels = "a,b"',
            'model.labels: expected a list, such as ["no", "yes"], got "a,b" (a variable',
        ),
        (
            'topics = ["a"]\n[model]\nweights = "a"',
            "expected a list, such as [1, -2], or a table, such as { age = 1 }, got",
        ),
        (
            'topics = ["a"]\n[model]\nmargin = "a"',
            'model.margin: expected a number, or [negative, positive], got "a" (a variable',
        ),
        ('[model]\nweights = "a"', "model.weights: expected a table"),
        ('topics = ["a"]\n[model.event]\nweight = true', "model.event.weight: expected a string or false, got true"),
        ('start_at = "begin"', "start_at: expected earliest, latest or PARTITION:OFFSET,…, got 'begin'"),
        ("start_at = 5", "start_at: expected a string, got 5"),
        ('topics = ["a"]\n[model]\nhalf_life = 5', 'model: half_life needs average = "recent"'),
        ('topics = ["a"]\n[model]\nserve = "average"', 'serve = "average" needs average = true or "recent"'),
        (
            'topics = ["a"]\n[model]\nmargin = -1',
            "model.margin: expected a number from 0 to 1e+30, or [negative, positive], got -1",
        ),
        (
            'topics = ["a"]\n[model]\nmargin = [1, nan]',
            "model.margin: expected a number from 0 to 1e+30, or [negative",
        ),
        (
            'topics = ["a"]\n[model]\nmargin = true',
            "model.margin: expected a number from 0 to 1e+30, or [negative, po",
        ),
        (
            'topics = ["a"]\n[model]\nmargin = [1, 1, 1]',
            "model.margin: expected a number from 0 to 1e+30, or [negativ",
        ),
        ('topics = ["a"]\n[model]\nrule = "lms"\nmargin = 1', 'takes no margin (it belongs to rule = "perceptron")'),
        (
            'topics = ["a"]\n[models.a.candidates.c]\neta = 1',
            "models.a.candidates.c: it is the model itself: give it another rule, eta, margin, …",
        ),
        (
            'topics = ["a"]\n[model]\nrule = "lms"\neta = 0.5\n[model.candidates.c]\nrule = "lms"',
            "model.candidates.c: it is the model itself",
        ),
        ('topics = ["a"]\n[models.a.candidates."a b"]\neta = 2', "models.a.candidates: 'a b' is no name of one"),
        ('topics = ["a"]\n[models.a.candidates.last]\neta = 2', "models.a.candidates: 'last' is no name of one"),
        (
            'topics = ["a"]\n[models.a.candidates.c]\netha = 2',
            "models.a.candidates.c.etha: there is no such setting: perhaps eta",
        ),
        (
            'topics = ["a"]\n[models.a.candidates.c]\nscale = "standard"',
            "models.a.candidates.c.scale: there is no such setting: it is the model's, and the same for all its cand",
        ),
        (
            '[model.candidates.c.event]\nlabel = "/y"',
            "model.candidates.c.event: there is no such setting: it is the model's, and the same for all its candidat",
        ),
        (
            '[models.a.event]\nlabel = "outcome.fraud"',
            "models.a.event.label: expected a JSON Pointer, such as /label or /after/label, "
            'got "outcome.fraud": perhaps /outcome/fraud',
        ),
        (
            'topics = ["a"]\n[model.event]\nfeatures = "a~b"',
            '/label or /after/label, or "" for the whole record, got "a~b"',
        ),
        (
            '[models.a.event]\nid = ""',
            "models.a.event.id: expected a JSON Pointer, such as /label or /after/label or false, "
            'got "": only features can be the whole record',
        ),
        ('topics = ["a"]\n[models.a.candidates.c]\neta = 0', "models.a.candidates.c.eta: expected a number greater th"),
        (
            'topics = ["a"]\n[models.a.candidates.c]\nrule = "half-step"\neta = 2',
            'models.a.candidates.c: rule = "half-step" needs 0 < eta < 1',
        ),
        (
            'topics = ["a"]\n[models.a.candidates.c]\nrule = "lms"\nmargin = 1',
            'models.a.candidates.c: rule = "lms" takes no margin (it belongs to rule = "perceptron")',
        ),
        (
            'topics = ["a"]\n[models.a.candidates.c]\neta = 2\nserve = "average"',
            'models.a.candidates.c: serve = "average" needs average = true or "recent"',
        ),
        (
            'topics = ["a"]\n[models.a.candidates.c]\nrule = "threshold-unit"',
            "models.a.candidates: a threshold-unit never learns: it is none and has none",
        ),
        (
            'topics = ["a"]\n[models.a]\nserve = "d"\n[models.a.candidates.c]\neta = 2',
            "models.a.serve: there is no candidate 'd': expected one of last, average, c",
        ),
        ('start_at = "now"', "start_at: expected earliest, latest or PARTITION:OFFSET"),
        ("topics = [", "perceptron.toml"),
        ("topics = 5", "topics"),
        ('topics = ["' + "t" * 237 + '"]', "at most 236"),
        ('[kafka]\nbootstrap_servers = "localhost"', "kafka.bootstrap_servers"),
        ('[kafka]\nbootstrap_servers = "a:9092,b:x"', "kafka.bootstrap_servers"),
        ('[redis]\nurl = "redis://h:abc/0"', "redis.url: expected redis://"),
        ('[redis]\nurl = "redis://h:1/xyz"', "redis.url: expected redis://"),
        ('[redis]\nurl = "redis://[::1/0"', "redis.url: expected redis://"),
        ('[redis]\nusername = "u"', "redis.username: needs password, or password_file"),
        ('[redis]\nurl = "redis://u:p@h/0"\npassword = "x"', "redis.password: url has credentials too"),
        ('[redis]\nurl = "redis://h/0?password=p"\npassword = "x"', "redis.password: url has credentials too"),
        ('[redis]\npassword_file = "/nowhere"', "redis.password_file: /nowhere: No such file or directory"),
        ('[redis]\nurl = "rediss://h/0"\nssl_cafile = "/nowhere"', "redis.ssl_cafile: /nowhere: No such file"),
        ('[redis]\nssl_cafile = "/nowhere"', "redis.ssl_cafile: is of no use without TLS: url begins with rediss://"),
        ('[redis]\nurl = "rediss://h/0?ssl_ca_certs=x"\nssl_check_hostname = false', "redis.url: has ssl options, as"),
        ('[redis]\nsentinels = ["h"]', "redis.sentinels: expected HOST:PORT of each"),
        ('[redis]\nsentinels = ["h:1"]\nurl = "redis://h/1"', "redis.url: sentinels name the host: leave it out"),
        ('[redis]\nsentinels = ["h:1"]\nurl = "unix:///x"', "redis.url: sentinels name the host: leave it out"),
        ('[redis]\nsentinel_password = "x"', "redis.sentinel_password: is of no use without sentinels"),
        ('[redis]\nurl = "redis://u:p/x@h:1/0"', "redis.url: expected redis://"),
        ('[http]\ntoken_file = "tokens"', "http.token_file: tokens: No such file or directory"),
        ("model = 3", "model: expected a table"),
        ('topics = "churn"', 'topics: expected a list, such as ["a", "b"], got "churn"'),
        ('learn = "yes"', 'learn: expected true or false, got "yes"'),
        ("learn = 1", "learn: expected true or false, got 1"),
        ('[http]\nport = "8000"', 'http.port: expected a whole number, got "8000"'),
        ('[redis]\nsentinels = "a:1,b:1"', "redis.sentinels: expected a list, such as"),
        ('[model]\nlabels = "[0, 1]"', 'model.labels: expected a list, such as ["a", "b"], got "[0, 1]"'),
        ('[model]\nmargin = "1"', 'model.margin: expected a number, got "1"'),
        ('[model]\naverage = "yes"', "model.average: expected false, true or 'recent', got \"yes\""),
        ('[models.a.candidates.c]\neta = "2"', 'models.a.candidates.c.eta: expected a number, got "2"'),
        ("[models.a]\ncandidates = {c = 1}", "models.a.candidates.c: expected a table"),
        ('[model]\nruel = "lms"', "model.ruel: there is no such setting: perhaps rule"),
        ('topics = ["a", "b"]\n[model]\nruel = "lms"', "model.ruel: there is no such setting: perhaps rule"),
        ('topics = ["a"]\n[model]\nrule = "percepton"', '-unit\', got "percepton": perhaps perceptron'),
        ('topics = ["a"]\n[models.a]\nrule = 1\n[model]\nrule = "lms"', "models.a.rule: expected"),
        (
            'topics = ["a"]\n[model]\nstart = "random"',
            'model.start: random: No such file or directory: expected "zero", "random:SEED" or a file of weights',
        ),
        ('[kafka]\nbootstrap_servers = "h:1,h:99999"', "between them: a port is from 1 to 65535, got h:99999"),
        ('[kafka]\nbootstrap_servers = "http://h:1"', 'got "http://h:1"'),
        ('[redis]\nurl = "localhost:6379"', 'unix://path, got "localhost:6379"'),
        ('[redis]\nurl = "http://me:secret@h:1/0"', 'unix://path, got "http://me:***@h:1/0"'),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_setting(text: str, part: str) -> None:
    Path("perceptron.toml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(None, {})
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_each_wrong_thing_is_said_once() -> None:
    Path("perceptron.toml").write_text('topics = ["a", "b"]\n[model]\nruel = "lms"\neta = 0\n')
    with pytest.raises(ConfigurationError) as caught:
        load(None, {})
    assert str(caught.value) == (
        "model.eta: expected a number greater than 0, got 0; model.ruel: there is no such setting: perhaps rule"
    )


@pytest.mark.parametrize(
    ("name", "value", "text", "said"),
    [
        ("REDIS__URL", "redis://h:1/0", 'redis = "redis://x"', "redis: expected a table"),
        ("HTTP__PORT", "1", '[http]\nport = "2"', 'http.port: expected a whole number, got "2"'),
        ("MODEL__ETA", "1", "model = 3", "model: expected a table, got 3"),
    ],
)
def test_a_variable_hides_nothing_that_is_wrong_in_the_file(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str, said: str
) -> None:
    monkeypatch.setenv(f"PERCEPTRON_{name}", value)
    Path("perceptron.toml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(None, {})
    assert str(caught.value) == said


def test_text_of_the_environment_is_read_as_what_a_setting_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("LEARN", "no"),
        ("HTTP__PORT", "80"),
        ("MODELS__A__WINDOW", "7"),
        ("SNAPSHOTS", '{"keep": "3"}'),
    ):
        monkeypatch.setenv(f"PERCEPTRON_{name}", value)
    settings = load(None, {"topics": ["a"]})
    assert (settings.learn, settings.http.port, settings.of("a").window, settings.snapshots.keep) == (False, 80, 7, 3)


def test_each_setting_has_the_origin_that_it_was_taken_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's own table wins over [model], whoever says the one and the other."""
    Path("perceptron.toml").write_text('topics = ["a.b", "c"]\n[models."a.b"]\neta = 2.0\n[model]\nwindow = 5\n')
    monkeypatch.setenv("PERCEPTRON_MODEL__ETA", "3")
    monkeypatch.setenv("PERCEPTRON_HTTP", '{"port": 1}')
    settings = load(None, {"topics": ["a.b", "c"], "http": {"host": "h"}})
    assert [settings.of(model).eta for model in ("a.b", "c")] == [2.0, 3.0]
    for setting, origin in {
        ("models", "a.b", "eta"): "perceptron.toml",
        ("models", "c", "eta"): "environment PERCEPTRON_MODEL__ETA",
        ("models", "c", "window"): "perceptron.toml",
        ("models", "c", "rule"): "default",
        ("http", "port"): "environment PERCEPTRON_HTTP",
        ("http", "host"): "flag",
        ("http", "token_file"): "default",
    }.items():
        assert settings.origins.of(setting)[1] == origin, setting


def test_sentinels_from_the_environment_and_the_database_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCEPTRON_REDIS__SENTINELS", "a:1, b:2")
    redis = load(None, {}).redis
    assert (redis.sentinels, redis.url) == (["a:1", "b:2"], "redis:///0")
    assert load(None, {"redis": {"url": "rediss:///3"}}).redis.url == "rediss:///3"


@pytest.mark.parametrize(
    ("redis", "warned"),
    [
        ({"url": "redis://:p@h/0"}, True),
        ({"url": "redis://h/0", "password": "p"}, True),
        ({"sentinels": ["localhost:1", "h:1"], "password": "p"}, True),
        ({"url": "rediss://:p@h/0"}, False),
        ({"url": "redis://h/0"}, False),
        ({"url": "redis://127.0.0.1/0", "password": "p"}, False),
        ({"url": "unix:///x", "password": "p"}, False),
    ],
)
def test_a_password_in_the_clear_is_warned_of(redis: Any, warned: bool) -> None:
    assert [("redis.url begins with redis://: " in line) for line in load(None, {"redis": redis}).warnings] == [
        True
    ] * warned


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"topics\xff")
    for file, why in (
        ("nowhere.toml", "no such file"),
        (str(tmp_path), "it is no file"),
        (str(tmp_path / "binary.toml"), "not UTF-8 at byte 6"),
        ("/proc/self/mem", "Input/output error"),
    ):
        with pytest.raises(ConfigurationError, match=f"^{re.escape(file)}: {why}$"):
            load(file, {})


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_bytes(b'\xef\xbb\xbftopics = ["a"]\n')
    assert load(str(tmp_path / "marked.toml"), {}).topics == ["a"]


@pytest.mark.parametrize(
    ("text", "value"), [(None, None), ("earliest", "earliest"), ("0:5,2:7", {0: 5, 2: 7}), ("latest", "latest")]
)
def test_start_at(text: str | None, value: Any) -> None:
    assert parse_start_at(text) == value


def test_an_identity_sees_labels_that_python_takes_for_equal() -> None:
    numbers, booleans = Identity(labels=(0, 1)), Identity(labels=(False, True))
    assert booleans.differences(numbers) == ["labels: [0,1] -> [false,true]"]
    assert Identity(event=Places(label="/x")).differences(Identity()) == ['event.label: "/label" -> "/x"']
    by_value = load(None, {"topics": ["a"], "model": {"labels": [0.0, 1.0]}}).models["a"].identity()
    assert by_value.differences(numbers) == []


@pytest.mark.parametrize(
    ("text", "margins"), [("2", (2.0, 2.0)), ("[0, 0.5]", (0.0, 0.5)), ("[-0.0, 0]", (0.0, 0.0)), ("0", (0.0, 0.0))]
)
def test_margins_that_are_0_are_the_plain_rule(
    monkeypatch: pytest.MonkeyPatch, text: str, margins: tuple[float, float]
) -> None:
    """Its identity says nothing of them, so that a model from before they were known is gone on with."""
    monkeypatch.setenv("PERCEPTRON_MODEL__MARGIN", text)
    identity = load(None, {"topics": ["a"]}).models["a"].identity()
    assert identity.margins == margins
    assert (b"margin" in msgspec.json.encode(identity)) == any(margins)
    assert bool(identity.differences(Identity())) == bool(Identity().differences(identity)) == any(margins)


@pytest.mark.parametrize("name", ["PERCEPTRON_KAFKA", "PERCEPTRON_HTTP"])
def test_a_variable_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "notjson")
    with pytest.raises(ConfigurationError, match=f"^environment {name}: expected JSON: Expecting value"):
        load(None, {})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HTTP__PORT", "abc", 'http.port (environment PERCEPTRON_HTTP__PORT): expected a whole number, got "abc"'),
        (
            "MODEL__ETA",
            "0",
            'model.eta (environment PERCEPTRON_MODEL__ETA): expected a number greater than 0, got "0"',
        ),
        (
            "MODELS__A__ETHA",
            "1",
            "models.a.etha (environment PERCEPTRON_MODELS__A__ETHA): there is no such setting: perhaps eta",
        ),
        (
            "KAFKA",
            '{"group": "g"}',
            "kafka.group (environment PERCEPTRON_KAFKA): there is no such setting: perhaps group_id",
        ),
        ("REDIS__USERNAME", "u", "redis.username (environment PERCEPTRON_REDIS__USERNAME): needs password, or"),
    ],
)
def test_a_variable_whose_value_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    """But not where a flag says another value, which is then what is wrong."""
    monkeypatch.setenv(f"PERCEPTRON_{name}", value)
    with pytest.raises(ConfigurationError, match=f"^{re.escape(said)}"):
        load(None, {"topics": ["a"]})
    with pytest.raises(ConfigurationError, match=r"(^|; )http.port: expected a number less .* got 99999"):
        load(None, {"topics": ["a"], "http": {"port": 99999}})


@pytest.mark.parametrize("name", ["PERCEPTRON_FOO__BAR", "PERCEPTRON_TOPICS__A", "PERCEPTRON_KAFKA__FOO"])
def test_a_variable_within_a_table_is_refused_as_in_the_file(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What is in no table may be somebody else's: it is warned of."""
    monkeypatch.setenv("PERCEPTRON_FOO", "1")
    assert load(None, {}).ignored == ["environment PERCEPTRON_FOO: there is no such setting"]
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigurationError, match=f"environment {name}\\)?: there is no such setting"):
        load(None, {})


@pytest.mark.parametrize("said", ["file", "environment"])
def test_a_setting_of_an_earlier_release_is_ignored_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """So an upgrade does not fail at it; also one within a table, alone or in the table as JSON."""
    monkeypatch.setattr(loading, "REMOVED", {("reader",): "now this", ("kafka", "gone"): "now that"})
    monkeypatch.setenv("PERCEPTRON_LOG", "json")
    if said == "file":
        Path("perceptron.toml").write_text('reader = "decoder"\n[kafka]\ngone = 1\ngroup_id = "g"\n')
        origins = ["perceptron.toml"] * 2
    else:
        monkeypatch.setenv("PERCEPTRON_READER", "decoder")
        monkeypatch.setenv("PERCEPTRON_KAFKA__GONE", "1")
        monkeypatch.setenv("PERCEPTRON_KAFKA__GROUP_ID", "g")
        origins = ["environment PERCEPTRON_READER", "environment PERCEPTRON_KAFKA__GONE"]
    settings = load(None, {})
    gone = "this setting is gone: it is ignored, and an error from 0.4 on"
    assert settings.warnings == [
        f"reader ({origins[0]}): {gone}; now this", f"kafka.gone ({origins[1]}): {gone}; now that"
    ]  # fmt: skip
    assert (settings.kafka.group_id, settings.log) == ("g", "json")
    monkeypatch.setenv("PERCEPTRON_KAFKA", '{"gone": 1}')
    assert len(load(None, {}).warnings) == 2
    monkeypatch.setattr(loading, "REMOVED", {})
    if said == "file":
        with pytest.raises(ConfigurationError, match="there is no such setting"):
            load(None, {})


def test_what_a_candidate_does_not_say_is_what_the_model_says_of_the_same_rule() -> None:
    Path("perceptron.toml").write_text(
        'topics = ["a"]\n[models.a]\neta = 2.0\nmargin = 1\ntie = "positive"\naverage = "recent"\nhalf_life = 9\n'
        'scale = "standard"\nstart = "random:7"\nserve = "other"\n[models.a.candidates.same]\neta = 3.0\n'
        '[models.a.candidates.other]\nrule = "logistic-delta"\naverage = true\nserve = "average"\n'
    )
    model = load(None, {}).of("a")
    beside, own = model.options().candidates, model.identity()
    assert beside["same"] == (msgspec.structs.replace(own, eta=3.0), "last")
    rule: dict[str, Any] = {"rule": "logistic-delta", "eta": 0.1, "slope": 1.0, "margin": msgspec.UNSET}
    other = msgspec.structs.replace(own, **rule, tie="negative", average=True, half_life=None)
    assert beside["other"] == (other, "average")
    assert model.options().serve == "other"
    alone = model_settings(load(None, {}), "a", {"eta": 3.0})
    assert alone.identity() == beside["same"].identity, "a command's flags may make it one of them"


def test_a_candidate_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a model whose weights are given begins with none, as it is not known when it will."""
    Path("w.json").write_text('{"coef": [1.0], "intercept": 0.5, "names": ["x"]}')
    monkeypatch.setenv("PERCEPTRON_MODELS__A__START", "w.json")
    monkeypatch.setenv("PERCEPTRON_MODELS__A__CANDIDATES__WIDE__MARGIN", "[0, 2]")
    monkeypatch.setenv("PERCEPTRON_MODELS__A__SERVE", "wide")
    beside = load(None, {"topics": ["a"]}).of("a").options().candidates
    assert (beside["wide"].identity.margins, beside["wide"].identity.start) == ((0.0, 2.0), "zero")


@pytest.mark.parametrize(("text", "value"), [("recent", "recent"), ("true", True), ("0", False)])
def test_the_average_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, value: Any) -> None:
    monkeypatch.setenv("PERCEPTRON_MODEL__AVERAGE", text)
    identity = load(None, {"topics": ["a"]}).of("a").identity()
    assert (identity.average, identity.half_life) == (value, 1000 if text == "recent" else None)


def test_a_topic_that_a_pattern_finds_has_the_patterns_settings() -> None:
    """Also where the command line names it alone; its own table wins, and what is kept beside topics is not found."""
    Path("perceptron.toml").write_text(
        'topics = ["main", "^c-"]\n[model]\neta = 0.5\n[models."^c-"]\neta = 2.0\n[models.c-3]\neta = 3.0\n'
    )
    settings = load(None, {})
    assert (settings.listed, settings.patterns) == (["main"], ["^c-"])
    assert [settings.of(name).eta for name in ("main", "c-1", "c-3")] == [0.5, 2.0, 3.0]
    names = ["c-1", "c-1.dead-letters", "__c-1", "main", "xc-1", "c-" + "x" * 240]
    assert [name for name in names if settings.wanted(name)] == ["c-1"]
    assert load(None, {"topics": ["c-1"]}).of("c-1").eta == 2.0
