"""Settings: four sources in order, and one line for each error."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.errors import ConfigurationError
from service.learning.identity import Identity, Places
from service.learning.records import PartitionId
from service.settings import load as loading
from service.settings.load import load, override_model_settings, parse_start_at
from tests.partitions import P0


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PERCEPTRON_CONFIG", "PERCEPTRON_TOPICS"):
        monkeypatch.delenv(name, raising=False)


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


def error_of(text: str) -> str:
    """The error of these settings, which is one line and the user's fault."""
    Path("perceptron.toml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(None, {})
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("topics = [", "perceptron.toml"),
        ("topics = 5", "topics: expected a list"),
        ('topics = ["a b"]', "topics: 'a b' is not a topic name"),
        ('topics = ["^("]', "topics: '^(' is not a regular expression"),
        ('topics = ["' + "t" * 237 + '"]', "at most 236"),
        ('topics = ["a"]\n[models.a]\ntopic = "b"', "topics: model 'a' learns topic 'b': take it out here"),
        ('[models."^a"]\ntopic = "b"', "models: '^a' learns a topic, and its name is not a topic name"),
        ('[models.a]\ntopic = "b c"', "models.a.topic: 'b c' is not a topic name"),
        ("topic = 1", "topic: there is no such setting: perhaps topics"),
        ('learn = "perhaps"', 'learn: expected true or false, got "perhaps"'),
        ('start_at = "7w"', "start_at: expected earliest, latest, a time such as 2026-11-01T00:00:00Z, an age such as"),
        ("[kafka]\ngroupid = 1", "kafka.groupid: there is no such setting: perhaps group_id"),
        ('[kafka]\ngroup_id = ""', "kafka.group_id: expected at least 1 character"),
        ('[kafka]\nbootstrap_servers = "localhost"', "kafka.bootstrap_servers"),
        ('[kafka]\nbootstrap_servers = "h:1,h:99999"', "kafka.bootstrap_servers: expected HOST:PORT, or several"),
        ("[http]\nport = 99999", "http.port: expected a number less than or equal to 65535, got 99999"),
        ('[http]\ntoken_file = "tokens"', "http.token_file: tokens: No such file or directory"),
        ('[redis]\nurl = "redis://h:abc/0"', "redis.url: expected redis://"),
        ('[redis]\nusername = "u"', "redis.username: needs password, or password_file"),
        ('[redis]\nurl = "redis://u:p@h/0"\npassword = "x"', "redis.password: url has credentials too"),
        ('[redis]\nurl = "redis://h/0?password=p"', "redis.url: expected redis://"),
        ('[redis]\nurl = "redis://:a/b#@h/0"', "in a password write %23 for #, %2F for /, %3F for ? and %40 for @"),
        ('[redis]\npassword_file = "/nowhere"', "redis.password_file: /nowhere: No such file or directory"),
        ('[redis]\nssl_cafile = "/nowhere"', "redis.ssl_cafile: is of no use without TLS"),
        ('[redis]\nurl = "rediss://h/0"\nssl_cafile = "/nowhere"', "redis.ssl_cafile: /nowhere: No such file"),
        ('[redis]\nsentinels = ["h"]', "redis.sentinels: expected HOST:PORT of each"),
        ('[redis]\nsentinels = ["h:1"]\nurl = "redis://h/1"', "redis.url: sentinels name the host: leave it out"),
        ('[redis]\nsentinel_password = "x"', "redis.sentinel_password: is of no use without sentinels"),
        ('[model]\nruel = "lms"', "model.ruel: there is no such setting: perhaps rule"),
        ("[model.pts]\neta = 1", "model.pts: there is no such setting: perhaps [models.pts]"),
        ('[models.a.event]\nlabel = "outcome.fraud"', 'got "outcome.fraud": perhaps "/outcome/fraud"'),
        ("[server]\nport = 1", "server: there is no such setting: perhaps http"),
        ('[broker]\ngroup_id = "g"', "broker: there is no such setting: perhaps kafka"),
        ("[model]\nlearning_rate = 1", "model.learning_rate: there is no such setting: perhaps eta"),
        ('[models.a.event]\nid = ""', "models.a.event.id: expected at least 1 character or false"),
        ('[model.candidates.c.event]\nlabel = "/y"', "model.candidates.c.event: there is no such setting"),
        ("[models.a]\ncandidates = {c = 1}", "models.a.candidates.c: expected a table"),
        (
            "".join(f"[models.a.candidates.c{i}]\neta = {i + 2}\n" for i in range(17)),
            "candidates: expected at most 16 items",
        ),
        (f'[model]\nfeatures = "hashed"\nbits = 24\nlabels = {list(range(9))}', "need 1,207,959,552 bytes"),
        ("a = " + "[" * 3000 + "]" * 3000, "perceptron.toml: maximum recursion depth"),
    ],
)
def test_an_error_is_one_line_that_names_the_setting(text: str, part: str) -> None:
    assert part in error_of(text)


POSITIONAL = '[models.a]\nfeatures = "positional"\ndimension = 3\n'


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('eta = "fast"', 'model.eta: expected a number, got "fast"'),
        ('rule = "percepton"', '-unit\', got "percepton": perhaps perceptron'),
        (
            'start = "random"',
            'model.start: random: No such file or directory: expected "zero", "random:SEED" or a file',
        ),
        ('features = "positional"', 'models.a.dimension: set it with features = "positional", and only then'),
        (POSITIONAL + 'event.types = { "a" = "time" }', 'models.a: event.types: features = "positional" takes'),
        (POSITIONAL + 'event.nan = "absent"', 'models.a: event.nan: features = "positional" takes'),
        (POSITIONAL + 'text = "number"', 'models.a.text: features = "positional" takes'),
        ('event.types = { "a" = "date" }', "model.event.types.a: expected 'number', 'category' or 'time', got"),
        ('labels = "ok,fail"', 'model.labels: expected a list, such as ["a", "b"], got "ok,fail"'),
        ("labels = [1, 2, 3, 2.0]", "model.labels: the labels must differ"),
        ('labels = [1, 2, 3]\nrule = "half-step"', 'model: rule = "half-step" learns two labels: for 3 take rule'),
        ("labels = [1, 2, 3]\nmargin = 1", "margin needs two labels, and there are 3"),
        ('average = "mean"', "model.average: expected true or false or 'recent'"),
        ("half_life = 5", 'model: half_life needs average = "recent"'),
        ("clip = 6", 'model.clip: set it with scale = "standard", and only then'),
        ("positive_above = inf", "model.positive_above: expected a finite number"),
        ("candidates.previous.eta = 2", "model.candidates: 'previous' cannot be a name"),
        ('serve = "average"', 'serve = "average" needs average = true or "recent"'),
        ('serve = "best"', 'serve = "best" chooses among the model and its candidates: add a candidate or an average'),
        ("[models.a.candidates.best]\neta = 2", "candidates: 'best' cannot be a name"),
        ('serve = "d"\n[models.a.candidates.c]\neta = 2', "serve: there is no candidate 'd': expected one of last,"),
        ("event.weight = true", "model.event.weight: expected a string or false, got true"),
        ("candidates.c.eta = 1", "model.candidates.c: it is the model itself: give it another rule, eta, margin"),
        ("candidates.c.etha = 2", "model.candidates.c.etha: there is no such setting: perhaps eta"),
        ('candidates.c = { rule = "half-step", eta = 2 }', 'model.candidates.c: rule = "half-step" needs 0 < eta < 1'),
        ('candidates.c.rule = "threshold-unit"', "model.candidates: a threshold-unit never learns"),
        (
            'event.where = { "/label/kind" = "sale" }',
            "/label/kind of where is inside /label, which must be",
        ),
        ('event.where = { "/weight/unit" = "kg" }', "/weight/unit of where is inside /weight"),
        ('event.where = { "/features" = 1 }', "/features of where is not a single value"),
        ('event.label = "/a/y"\nevent.where = { "/a" = 1 }', "/a of where is not a single value"),
        ('join = { window = "1h", where = { "/id/x" = 1 } }', "/id/x of where is inside /id"),
        ('event.without = ["*"]', "event: without: it leaves out every feature"),
        ('event.only = ["a*"]\nevent.without = ["b", "a*"]', "event: without: it leaves out every feature"),
        (
            '[models.b]\ntopic = "c.dead-letters"',
            "topic 'c.dead-letters', which has dead letters of 'c'",
        ),
    ],
)
def test_an_error_in_a_model_is_one_line_that_names_the_setting(text: str, part: str) -> None:
    assert part in error_of(f'topics = ["a"]\n[model]\n{text}\n')


def test_places_and_patterns_that_can_match_are_accepted() -> None:
    Path("perceptron.toml").write_text(
        'topics = ["a", "b"]\n[models.a.event]\nonly = ["a*"]\nwithout = ["a1"]\nweight = false\n'
        'where = { "/label" = [0, 1], "/features/kind" = "sale", "/weight/unit" = "kg" }\n'
        '[models.b]\njoin.window = "1h"\nevent = { label = "/a/y", where = { "/a" = 1 } }\n'
    )
    assert [*load(None, {}).model_topics] == ["a", "b"]


def test_each_error_is_reported_once() -> None:
    expected = "model.eta: expected a number greater than 0, got 0; model.ruel: there is no such setting: perhaps rule"
    assert error_of('topics = ["a", "b"]\n[model]\nruel = "lms"\neta = 0\n') == expected


def test_a_variable_is_read_as_the_type_of_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("TOPICS", "a, b"),
        ("LEARN", "no"),
        ("HTTP__PORT", "80"),
        ("SNAPSHOTS", '{"keep": "3"}'),
        ("REDIS__SENTINELS", "a:1, b:2"),
        ("MODEL__LABELS", "[false, true]"),
        ("MODEL__AVERAGE", "recent"),
        ("MODELS__A__AVERAGE", "0"),
        ("MODELS__B__CANDIDATES__WIDE__MARGIN", "[0, 2]"),
    ):
        monkeypatch.setenv(f"PERCEPTRON_{name}", value)
    settings = load(None, {})
    assert settings.topics == ["a", "b"]
    assert (settings.learn, settings.http.port, settings.snapshots.keep) == (False, 80, 3)
    assert (settings.redis.sentinels, settings.redis.url) == (["a:1", "b:2"], "redis:///0")
    a, b = settings.model_settings("a"), settings.model_settings("b")
    assert (a.labels, a.average, b.average) == ((False, True), False, "recent")
    assert b.options().candidates["wide"].identity.margins == (0.0, 2.0)


def test_flag_over_environment_over_file_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting has its origin. A model's own table wins over [model], wherever both are set."""
    Path("perceptron.toml").write_text(
        'topics = ["a.b", "c"]\n[models."a.b"]\neta = 2.0\n[model]\nwindow = 5\n[http]\nport = 1\nhost = "file"\n'
    )
    monkeypatch.setenv("PERCEPTRON_MODEL__ETA", "3")
    monkeypatch.setenv("PERCEPTRON_HTTP", '{"port": 2, "host": "environment"}')
    settings = load(None, {"http": {"host": "flag"}})
    for setting, value, origin in (
        ("http.host", settings.http.host, "flag flag"),
        ("http.port", settings.http.port, "2 environment PERCEPTRON_HTTP"),
        ("http.token_file", settings.http.token_file, "None default"),
        ("models.a-b.eta", settings.model_settings("a.b").eta, "2.0 perceptron.toml"),
        ("models.c.eta", settings.model_settings("c").eta, "3.0 environment PERCEPTRON_MODEL__ETA"),
        ("models.c.window", settings.model_settings("c").window, "5 perceptron.toml"),
        ("models.c.rule", settings.model_settings("c").rule, "perceptron default"),
    ):
        path = tuple(part.replace("-", ".") for part in setting.split("."))
        assert f"{value} {settings.origins.find_source(path)[1]}" == origin, setting


@pytest.mark.parametrize(
    ("redis", "warns"),
    [
        ({"url": "redis://:p@h/0"}, True),
        ({"sentinels": ["localhost:1", "h:1"], "password": "p"}, True),
        ({"url": "rediss://:p@h/0"}, False),
        ({"url": "redis://h/0"}, False),
        ({"url": "redis://h/0", "password": "p"}, True),
        ({"url": "redis://127.0.0.1/0", "password": "p"}, False),
        ({"url": "unix:///x", "password": "p"}, False),
    ],
)
def test_a_password_in_the_clear_is_warned_of(redis: dict[str, Any], warns: bool) -> None:
    warnings = load(None, {"redis": redis}).warnings
    assert ["redis.url begins with redis://: " in line for line in warnings] == [True] * warns


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"topics\xff")
    for file, reason in (
        ("nowhere.toml", "No such file or directory"),
        (str(tmp_path), "Is a directory"),
        (str(tmp_path / "binary.toml"), "'utf-8' codec can't decode byte 0xff in position 6: invalid start byte"),
    ):
        with pytest.raises(ConfigurationError, match=f"^{re.escape(file)}: {reason}$"):
            load(file, {})


def test_a_byte_order_mark_is_not_part_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_bytes(b'\xef\xbb\xbftopics = ["a"]\n')
    assert load(str(tmp_path / "marked.toml"), {}).topics == ["a"]


def test_start_at() -> None:
    assert [parse_start_at(text) for text in (None, "earliest", "latest")] == [None, "earliest", "latest"]
    assert parse_start_at("0:5,clicks-2:7") == {P0: 5, PartitionId(2, "clicks"): 7}
    times = "2026-11-01T01:00:00.5+01:00", "2026-11-01", "1969-12-31T23:59:59Z"
    assert [parse_start_at(text) for text in times] == [1_793_491_200_500, 1_793_491_200_000, 0]


def test_an_identity_sees_labels_that_python_takes_for_equal() -> None:
    numbers, booleans = Identity(labels=(0, 1)), Identity(labels=(False, True))
    assert booleans.differences(numbers) == ["labels: [0,1] -> [false,true]"]
    assert Identity(event=Places(label="/x")).differences(Identity()) == ['event.label: "/label" -> "/x"']
    by_value = load(None, {"topics": ["a"], "model": {"labels": [0.0, 1.0]}}).models["a"].identity()
    assert by_value.differences(numbers) == []


@pytest.mark.parametrize(
    ("text", "margins"), [("2", (2.0, 2.0)), ("[0, 0.5]", (0.0, 0.5)), ("[-0.0, 0]", (0.0, 0.0)), ("0", (0.0, 0.0))]
)
def test_margins_of_0_are_no_margins(monkeypatch: pytest.MonkeyPatch, text: str, margins: tuple[float, float]) -> None:
    """The identity then leaves margins out, so that a model that was stored before they existed continues."""
    monkeypatch.setenv("PERCEPTRON_MODEL__MARGIN", text)
    identity = load(None, {"topics": ["a"]}).models["a"].identity()
    assert identity.margins == margins
    assert (b"margin" in msgspec.json.encode(identity)) == any(margins)
    assert bool(identity.differences(Identity())) == bool(Identity().differences(identity)) == any(margins)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HTTP__PORT", "abc", 'http.port (environment PERCEPTRON_HTTP__PORT): expected a whole number, got "abc"'),
        ("MODELS__A__ETHA", "1", "models.a.etha (environment PERCEPTRON_MODELS__A__ETHA): there is no such setting"),
        ("KAFKA", '{"group": "g"}', "kafka.group (environment PERCEPTRON_KAFKA): there is no such setting: perhaps"),
        ("KAFKA", "notjson", "environment PERCEPTRON_KAFKA: expected JSON"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(f"PERCEPTRON_{name}", value)
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}"):
        load(None, {"topics": ["a"]})


def test_a_variable_as_json_names_models_with_dots_and_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's settings of the same model stay."""
    Path("perceptron.toml").write_text("[models.'Offers.v2']\nwindow = 7\n")
    monkeypatch.setenv("PERCEPTRON_MODELS", '{"Offers.v2": {"topic": "Offers", "eta": 2.0}}')
    settings = load(None, {})
    own = settings.model_settings("Offers.v2")
    assert (settings.model_topics, own.eta, own.window) == ({"Offers.v2": ["Offers"]}, 2.0, 7)


@pytest.mark.parametrize("name", ["PERCEPTRON_FOO__BAR", "PERCEPTRON_TOPICS__A", "PERCEPTRON_KAFKA__FOO"])
def test_a_variable_within_a_table_is_refused_as_in_the_file(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A variable outside all tables may be another program's: a warning follows only if it resembles a setting."""
    monkeypatch.setenv("PERCEPTRON_FOO", "1")
    monkeypatch.setenv("PERCEPTRON_LEAN", "1")
    warning = "environment PERCEPTRON_LEAN: there is no such setting: perhaps PERCEPTRON_LEARN"
    assert load(None, {}).ignored_settings == [warning]
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigurationError, match=f"environment {name}\\)?: there is no such setting"):
        load(None, {})


def test_a_setting_of_an_earlier_release_is_ignored_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade does not fail because of it, whether it is in the file or in the environment."""
    monkeypatch.setattr(loading, "REMOVED_SETTINGS", {("reader",): "now this", ("kafka", "gone"): "now that"})
    Path("perceptron.toml").write_text('reader = "decoder"\n[kafka]\ngroup_id = "g"\n')
    monkeypatch.setenv("PERCEPTRON_KAFKA__GONE", "1")
    settings = load(None, {})
    assert settings.kafka.group_id == "g"
    names = [warning.split(": ")[0] for warning in settings.warnings]
    assert names == ["reader (perceptron.toml)", "kafka.gone (environment PERCEPTRON_KAFKA__GONE)"]


def test_a_candidate_inherits_the_models_settings_of_the_same_rule() -> None:
    Path("perceptron.toml").write_text(
        'topics = ["a"]\n[models.a]\neta = 2.0\nmargin = 1\ntie = "positive"\naverage = "recent"\nhalf_life = 9\n'
        'scale = "standard"\nstart = "random:7"\nserve = "other"\npositive_above = 0.5\n'
        "[models.a.candidates.same]\neta = 3.0\n"
        '[models.a.candidates.other]\nrule = "logistic-delta"\naverage = true\nserve = "average"\n'
        "positive_above = -1.5\n"
    )
    model = load(None, {}).model_settings("a")
    candidates, identity = model.options().candidates, model.identity()
    same = candidates["same"]
    assert (same.identity, same.serve) == (msgspec.structs.replace(identity, eta=3.0), "last")
    assert same.positive_above is None
    rule: dict[str, Any] = {"rule": "logistic-delta", "eta": 0.1, "slope": 1.0, "margin": msgspec.UNSET}
    expected = msgspec.structs.replace(identity, **rule, tie="negative", average=True, half_life=None)
    assert candidates["other"] == (expected, "average", -1.5)
    assert (model.options().serve, model.options().positive_above) == ("other", 0.5)
    selected = override_model_settings(load(None, {}), "a", {"eta": 3.0})
    assert selected.identity() == same.identity, "the flags of a command may select a candidate"


def test_a_candidate_of_a_model_with_start_weights_begins_at_zero() -> None:
    Path("w.json").write_text('{"coef": [1.0], "intercept": 0.5, "names": ["x"]}')
    for line in ('scale = "standard"', "labels = [1, 2, 3]"):
        assert 'take "zero" or "random:SEED"' in error_of(f'topics = ["a"]\n[models.a]\nstart = "w.json"\n{line}\n')
    Path("perceptron.toml").write_text('[models.a]\nstart = "w.json"\ncandidates.wide.margin = [0, 2]\n')
    candidates = load(None, {"topics": ["a"]}).model_settings("a").options().candidates
    assert candidates["wide"].identity.start == "zero"


def test_a_topic_that_a_pattern_matches_has_the_patterns_settings() -> None:
    """A topic that only the command line names has them too. Its own table wins; dead-letter topics do not match."""
    Path("perceptron.toml").write_text(
        'topics = ["main", "^c-"]\n[model]\neta = 0.5\n[models."^c-"]\neta = 2.0\n[models.c-3]\neta = 3.0\n'
    )
    settings = load(None, {})
    assert ([*settings.model_topics], settings.patterns) == (["main"], ["^c-"])
    assert [settings.model_settings(name).eta for name in ("main", "c-1", "c-3")] == [0.5, 2.0, 3.0]
    names = ["c-1", "c-1.dead-letters", "__c-1", "main", "xc-1", "c-" + "x" * 240]
    assert [name for name in names if settings.requests_topic(name)] == ["c-1"]
    assert load(None, {"topics": ["c-1"]}).model_settings("c-1").eta == 2.0


def test_several_models_may_learn_one_topic() -> None:
    """A model with a topic is learned without being listed, and no pattern matches its topic."""
    Path("perceptron.toml").write_text('topics = ["churn", "^c"]\n[models.churn-v2]\ntopic = "churn"\neta = 2.0\n')
    settings = load(None, {})
    assert settings.model_topics == {"churn": ["churn"], "churn-v2": ["churn"]}
    assert [name for name in ("churn", "clicks") if settings.requests_topic(name)] == ["clicks"]
    assert not any("churn-v2" in line for line in settings.warnings)
