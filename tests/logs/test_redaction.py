"""What counts as a secret, and what does not: one of each kind."""

from __future__ import annotations

import pytest

from logs.redaction import REDACTED, has_secret, is_secret, redact_lines

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("AWS_SECRET_ACCESS_KEY", "x", True), ("HF_TOKEN", "x", True), ("db_passwd", "x", True),
        ("PASSPHRASE", "", True),
        ("MY_CREDENTIALS", "x", True), ("AUTH", "x", True), ("NCCL_AUTH_FILE", "x", True), ("AUTHOR", "x", False),
        ("OMP_NUM_THREADS", "4", False), ("A", f"AKIA{TOKEN.upper()}", True), ("A", f"ASIA{TOKEN.upper()[:-1]}", False),
        ("A", f"ghp_{TOKEN}", True), ("A", f"hf_{TOKEN}", True), ("A", f"sk-{TOKEN[:15]}", False),
        ("A", f"glpat-{TOKEN}", True), ("A", "eyJ01234567.01234567.", True), ("A", "http://user:word@host", True),
        ("A", "curl https://hooks.slack.com/services/T0/B0/x", True), ("A", f"Authorization: Bearer {TOKEN}", True),
        ("A", "a Bearer of news", False), ("A", f"ASIA{TOKEN.upper()}", True), ("A", f"basic {TOKEN}", True),
        ("A", "http://host:80/@x", False), ("A", "-----BEGIN RSA PRIVATE KEY-----", True),
    ],
)  # fmt: skip
def test_names_and_values_of_secrets(name: str, value: str, expected: bool) -> None:
    assert is_secret(name, value) == has_secret({"PATH": "/bin", name: value}) == expected


@pytest.mark.parametrize(
    "line",
    ["+API_KEY=abc", "-  password: abc", " 'secret_word': 'x'", "+x = 'http://user:word@host'", "+my_auth_token=1"],
)
def test_a_line_with_a_secret_keeps_its_sign_only(line: str) -> None:
    assert redact_lines(f"+a = 1\n{line}\n b") == f"+a = 1\n{line[0]}{REDACTED}\n b"


@pytest.mark.parametrize("line", ["+rows.sort(key=len)", "+if key == other:", "+token", "+monkey: 1", "+AUTHOR = 1"])
def test_ordinary_code_stays(line: str) -> None:
    assert redact_lines(line) == line


def test_a_block_with_a_private_key_goes_whole_also_without_an_end() -> None:
    begin, end = "-----BEGIN EC PRIVATE KEY-----", "-----END EC PRIVATE KEY-----"
    assert redact_lines(f"a\n{begin}\nMII\n{end}\nb") == f"a\n{REDACTED}\nb"
    assert redact_lines(f"a\n{begin}\nMII") == f"a\n{REDACTED}"
