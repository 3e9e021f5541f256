"""What counts as a secret, and what does not: one of each kind, and its nearest neighbour that is none."""

from logs.redaction import REDACTED, is_secret, may_hold_secret, redact_lines

TOKEN = "0123456789abcdef"


def test_a_variable_is_a_secret_by_its_name() -> None:
    secret = ["HF_TOKEN", "db_passwd", "PASSPHRASE", "MY_CREDENTIALS", "NCCL_AUTH_FILE"]
    names = [*secret, "AUTHOR", "OAUTH", "UNAUTHORISED", "OMP_PROC_BIND", "PASS", "LANG"]
    assert [name for name in names if is_secret(name, "")] == secret
    assert [name for name in names if may_hold_secret({"PATH": "/bin", name: "x"}, "")] == secret
    assert not may_hold_secret({}, "a = 1")


SECRETS = [
    f"AKIA{TOKEN.upper()}", f"ASIA{TOKEN.upper()}", *(f"gh{kind}_{TOKEN}" for kind in "opsur"), f"github_pat_{TOKEN}",
    f"hf_{TOKEN}", f"glpat-{TOKEN}", f"sk-{TOKEN}", *(f"xox{kind}-{TOKEN}" for kind in "abprs"),
    "eyJ01234567.01234567.",
    "curl https://hooks.slack.com/services/T0/B0/x", "https://discord.com/api/webhooks/1", "https://a.webhook.office.com/",
    "Authorization: Bearer 01234567", "bearer a+/._~=-", "Basic 01234567", "http://user:word@host",
    "postgres+ssl://:word@host", "-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----",
]  # fmt: skip
NO_SECRETS = [
    f"AKIA{TOKEN.upper()}0", f"ASIA{TOKEN.upper()[:-1]}", f"xAKIA{TOKEN.upper()}", f"ghx_{TOKEN}", f"ghp_{TOKEN[1:]}",
    f"xoxc-{TOKEN}", f"task-{TOKEN}", "eyJ0123456.01234567.", "eyJ01234567.0123456.", "Bearer 0123456",
    "forbearer 01234567", "http://user@host", "http://host:80/@x", "http://a b:c@host", "-----BEGIN PUBLIC KEY-----",
    "hooks.slack.com/help", "discord.com/channels", "4",
]  # fmt: skip


def test_a_value_of_this_form_is_a_secret_wherever_it_stands() -> None:
    values = [*SECRETS, *NO_SECRETS]
    assert [each for each in values if is_secret("A", each)] == SECRETS
    assert [each for each in values if may_hold_secret({}, f"first\n+ x = {each}\nlast")] == SECRETS


def test_a_line_that_gives_such_a_name_a_value_keeps_its_sign_only() -> None:
    for name in (
        "KEY", "MY_TOKEN", "A_SECRET_B", "CREDENTIALS", "X9_API_KEY_2", "db_password", "ssh_passphrase", "apikeys",
        "accesskey", "private_key", "my_auth_token", "ApiKey",
    ):  # fmt: skip
        for line in (f"+{name}=x", f" {name}: x", f"-'{name}': 'x'", f'+"{name}" = "x"'):
            assert redact_lines(f"+a = 1\n{line}\n b") == f"+a = 1\n{line[0]}{REDACTED}\n b"
        for line in (f"+{name}", f"+{name} =", f"+if {name} == 1:"):
            assert redact_lines(line) == line


def test_a_block_with_a_private_key_goes_whole_also_without_an_end() -> None:
    begin, end = "-----BEGIN EC PRIVATE KEY-----", "-----END EC PRIVATE KEY-----"
    blocks = f"a\n{begin}\nMII\n{end}\nkept\n{begin}\nb\n{end}\nc"
    assert redact_lines(blocks) == f"a\n{REDACTED}\nkept\n{REDACTED}\nc"
    assert redact_lines(f"a\n{begin}\nMII") == f"a\n{REDACTED}"
