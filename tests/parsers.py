"""The options of a parser as text, for tests that hold every one of them against a file."""

from argparse import ArgumentParser, _HelpAction, _StoreConstAction


def described(parser: ArgumentParser) -> str:
    """Return a line for each option: flags, metavar, number of words, type, what is stored, choices, help."""
    lines = []
    for action in parser._actions:
        if isinstance(action, _HelpAction):
            continue
        kind = getattr(action.type, "__name__", action.type)
        value = action.const if isinstance(action, _StoreConstAction) else action.default
        words = [*action.option_strings, action.metavar, action.nargs, kind, f"{action.dest}={value!r}", action.choices]
        needed = " (required)" if action.required else ""
        lines.append(f"    {' '.join(str(word) for word in words if word is not None)}{needed}: {action.help}")
    return "\n".join(lines)
