"""No secret is shown: not a part of it, and not where it is named like one."""

from __future__ import annotations

import pytest

from ddtree_deploy.onhost.wire import masking


def test_the_longest_secret_is_masked_first() -> None:
    for secrets in (["abcd", "abcdef"], ["abcdef", "abcd"]):
        assert masking.mask_text("key=abcdef", secrets) == "key=***"
        assert masking.mask_text("abcd and abcdef", secrets) == "*** and ***"


def test_four_characters_are_a_secret_and_three_would_hide_innocent_text() -> None:
    assert masking.mask_text("abcd abc", ["abcd"]) == "*** abc"
    assert masking.mask_text("the cat", ["cat"]) == "the cat"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--token", "s3cret"], ["--token", "***"]),
        (["--token=s3cret", "plain"], ["--token=***", "plain"]),
        (["--token", "s3cret", "more", "--port", "1"], ["--token", "***", "***", "--port", "1"]),
        (["--token", "--port", "1"], ["--token", "--port", "1"]),
        (["--api-key", "-1"], ["--api-key", "***"]),
        (["--max-total-tokens", "4096"], ["--max-total-tokens", "4096"]),
        (["-m", "token", "x"], ["-m", "token", "x"]),
    ],
)
def test_the_values_of_a_flag_that_is_named_like_a_secret_are_hidden(
    argv: list[str], shown: list[str]
) -> None:
    assert masking.mask_argv(argv) == shown


def test_other_secrets_are_hidden_wherever_they_are() -> None:
    assert masking.mask_argv(["--header", "Bearer s3cret"], ["s3cret"]) == ["--header", "Bearer ***"]
    found = masking.secret_values(
        ["--api-key", "one", "--token=two", "-x", "no"], {"HF_TOKEN": "3", "A": "b"}
    )
    assert found == {"one", "two", "3"}
