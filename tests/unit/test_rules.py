"""Every statement about rules, crossed with every rule, feature mode, tie, start, and with or without the average."""

import pytest

from service.errors import ConfigurationError
from service.learning.start import read
from tests.checks import MODES, RULES, STATEMENTS, Statement, models


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: s.__name__)
def test_statement(statement: Statement, rule: str, mode: str) -> None:
    tried = 0
    for model in models(rule, mode):
        statement(model)
        tried += 1
    assert tried == (2 if rule == "threshold-unit" else 12)


@pytest.mark.parametrize("number", ["1e101", "-1e200", "1e999"])
def test_a_given_weight_whose_square_is_no_number_is_refused(number: str) -> None:
    with pytest.raises(ConfigurationError):
        read(b'{"coef":[%s],"intercept":0,"names":["a"]}' % number.encode(), "w.json")
