"""The examples of docs/POLICY.md are policies."""

from __future__ import annotations

import re
from pathlib import Path

from scheduling.policy_file import parse_policy

PAGE = (Path(__file__).parents[2] / "docs" / "POLICY.md").read_text()


def test_every_example_of_the_page_is_read_and_the_first_has_every_table() -> None:
    examples = re.findall(r"```(toml|yaml)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [language for language, _ in examples] == ["toml", "yaml"]
    whole, listed = (parse_policy(text, source=f"p.{language}") for language, text in examples)
    assert all((whole.organizations, whole.pools, whole.flows, whole.default_organization))
    assert list(listed.pools) == ["external-model-a"]
