"""Keeps passwords, keys and tokens out of the files of a run folder. Imports nothing of ours."""

import re
from collections.abc import Mapping

REDACTED = "[redacted: looks like a secret]"

_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL|(^|_)AUTH(_|$)", re.IGNORECASE)
"""Names of variables with secrets: AWS_SECRET_ACCESS_KEY, WANDB_API_KEY, HF_TOKEN, HOROVOD_SECRET_KEY and the like."""

_VALUE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b"  # access keys of AWS
    r"|\b(gh[opsur]_|github_pat_|glpat-|hf_|xox[abprs]-|sk-)[A-Za-z0-9_-]{16,}"  # tokens of hosted services
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\."  # JSON web tokens
    r"|\bhooks\.slack\.com/services/|\bdiscord(app)?\.com/api/webhooks/|\bwebhook\.office\.com/"
    r"|\b[Bb](earer|asic) [A-Za-z0-9+/._~=-]{8,}"  # of an Authorization header
    # user:password@ in an address; a scheme of any length made a line of 200,000 letters take 80 s
    r"|[a-z][a-z0-9+.-]{0,63}://[^/\s:@]*:[^/\s@]+@"
)

_ASSIGNMENT = re.compile(
    r"\b([A-Z0-9_]*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)[A-Z0-9_]*"
    r"|(?i:\w*(secret|password|passwd|passphrase|api_?key|access_?key|private_?key|auth_?token)\w*))"
    r"[\"']?\s*[:=]\s*[^\s=]"
)
"""A line of code, YAML or shell that gives such a name a value. Lower-case ``key=`` alone is ordinary Python."""

_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable may hold a secret, judged by the variable's name and by the form of the value."""
    return bool(_NAME.search(name) or _VALUE.search(value))


def may_hold_secret(variables: Mapping[str, str], text: str) -> bool:
    """Return whether any of the variables, or a file with this text, may hold a secret."""
    return any(is_secret(*each) for each in variables.items()) or redact_lines(text) != text


def redact_lines(text: str) -> str:
    """Return ``text``, for example a diff, with `REDACTED` in place of every line that may hold a secret.

    The first character of a line stays, because a diff has its sign there.
    """
    text = _KEY_BLOCK.sub(REDACTED, text)
    lines = text.split("\n")
    return "\n".join(line[:1] + REDACTED if _VALUE.search(line) or _ASSIGNMENT.search(line) else line for line in lines)
