"""Find the source of images that a user means, among the modules of `configs.registry.SOURCES`."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import cast

from configs.errors import UserError, nearest
from configs.reading import exists
from configs.registry import BUILT_IN_SOURCES, SOURCES
from data.sources.image_source import Settings, Source, SourceModule, is_utf8, name_some, shown

_OPTIONS = ("size", "quality", "train", "eval", "classes", "labels", "eval_share")


def open_source(name: str, settings: Settings) -> Source:
    """Open the first source of the registry that recognises ``name``.

    Args:
        name: SOURCE of ``./run.sh prepare``: the name of a built-in source, or a folder.
        settings: What the user set.

    Raises:
        UserError: It cannot be read, no source recognises it, the source does not take a setting, or cannot be opened.
    """
    modules = {kind: _load(kind) for kind in SOURCES}
    kind = next((kind for kind, module in modules.items() if module.recognises(name)), None)
    if kind is None:
        raise UserError(_explain_unknown(name, modules))
    for option in _OPTIONS:
        if getattr(settings, option) is not None and option not in modules[kind].OPTIONS:
            takers = ", ".join(taker for taker, module in modules.items() if option in module.OPTIONS)
            raise UserError(f"--{option.replace('_', '-')} does not apply to {kind}, only to {takers}; leave it out")
    source = modules[kind].open_source(name, settings)
    if settings.in_place and source.place is None:
        raise UserError(f"{name}: --in-place does not apply to {source.description}; leave it out")
    if source.place is not None and not is_utf8(source.place.root):
        raise UserError(f"{shown(name)}: a path that is not UTF-8, which no manifest can hold; rename it")
    if source.problems:  # which may be the reason
        return source
    absent = [each for each, count in zip(source.class_names, source.class_counts("eval"), strict=True) if not count]
    told = f"no evaluation image of {name_some(absent)}: the accuracy does not cover these classes"
    return replace(source, notes=(*source.notes, told)) if absent else source


def layout_of(kind: str) -> str:
    """Return in a few words what a folder of this kind of source holds."""
    return _load(kind).LAYOUT


def _load(kind: str) -> SourceModule:
    return cast(SourceModule, import_module(SOURCES[kind]))


def _explain_unknown(name: str, modules: dict[str, SourceModule]) -> str:
    if not exists(Path(name)):
        names = " and ".join(BUILT_IN_SOURCES)
        return f"source {name!r}: no such folder, and sources by name are {names}; {nearest(name, BUILT_IN_SOURCES)}"
    layouts = [module.LAYOUT for kind, module in modules.items() if kind not in BUILT_IN_SOURCES][::-1]
    remedy = "give the folder that holds them, unpacked; images are JPEG or PNG files"
    return f"source {name}: neither {', nor '.join(layouts)}; {remedy}"
