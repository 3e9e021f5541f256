"""What counts as a secret, and what does not: one of each kind."""

import pytest

from logs.redaction import REDACTED, has_secret, is_secret, may_hold_secret, redact_lines

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


@pytest.mark.parametrize(
    "value",
    [
        *(f"gh{kind}_{TOKEN}" for kind in "opsur"), f"github_pat_{TOKEN}", f"hf_{TOKEN}", f"glpat-{TOKEN}",
        f"sk-{TOKEN}", *(f"xox{kind}-{TOKEN}" for kind in "abprs"), "https://discord.com/api/webhooks/1",
        "discordapp.com/api/webhooks/1", "https://a.webhook.office.com/", "Bearer 01234567", "bearer a+/._~=-",
        "Basic 01234567", "postgres+ssl://:word@host", "a9.-://user:word@host", "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----", "x eyJ-_345678.-_345678.",
    ],
)  # fmt: skip
def test_a_value_of_this_form_is_a_secret_wherever_it_stands(value: str) -> None:
    assert is_secret("A", value)
    assert may_hold_secret(f"first\n+ x = {value}\nlast")


@pytest.mark.parametrize(
    "value",
    [
        f"ghx_{TOKEN}", f"ghp_{TOKEN[1:]}", f"xoxc-{TOKEN}", f"AKIA{TOKEN.upper()}0", f"xAKIA{TOKEN.upper()}",
        f"task-{TOKEN}", "eyJ0123456.01234567.", "eyJ01234567.0123456.", "eyJ01234567.01234567", "Bearer 0123456",
        "forbearer 01234567", "http://user@host", "http://a b:c@host", "9://u:p@h", "-----BEGIN PUBLIC KEY-----",
        "hooks.slack.com/help", "discord.com/channels",
    ],
)  # fmt: skip
def test_a_value_that_only_looks_like_one_is_none(value: str) -> None:
    assert not is_secret("A", value)
    assert not may_hold_secret(f"first\n+ x = {value}\nlast")


@pytest.mark.parametrize(
    "name", ["KEY", "MY_TOKEN", "A_SECRET_B", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS", "X9_API_KEY_2"]
)
def test_a_line_that_sets_a_name_in_capitals_goes(name: str) -> None:
    for line in (f"+{name}=x", f" {name}: x", f"-'{name}': 'x'", f'+"{name}" = "x"'):
        assert redact_lines(line) == line[0] + REDACTED
    for line in (f"+{name}", f"+{name} =", f"+if {name} == 1:"):
        assert redact_lines(line) == line


@pytest.mark.parametrize(
    "name",
    ["secret", "db_password", "passwd", "ssh_passphrase", "api_key", "apikey", "access_key", "accesskey", "private_key",
     "privatekey", "auth_token", "authtoken", "ApiKey"],
)  # fmt: skip
def test_a_line_that_sets_a_name_in_small_letters_goes_if_the_name_is_unmistakable(name: str) -> None:
    assert may_hold_secret(f"{name} = x")
    assert may_hold_secret(f"{name}s: x")


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "AUTHORITY", "OAUTH", "UNAUTHORISED", "PASS", "LANG"])
def test_a_variable_of_another_name_is_none(name: str) -> None:
    assert not is_secret(name, "x")
    assert is_secret(f"{name}_AUTH", "x")
    assert is_secret(f"AUTH_{name}", "x")


def test_a_block_ends_at_its_end_and_no_variable_is_no_secret() -> None:
    begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    assert redact_lines(f"{begin}\na\n{end}\nkept\n{begin}\nb\n{end}\n") == f"{REDACTED}\nkept\n{REDACTED}\n"
    assert not has_secret({})
    assert has_secret({"HF_TOKEN": "x", "PATH": "/bin"})
