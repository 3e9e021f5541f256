"""The images in a tar: in class folders, in a tar for each class as in ImageNet's, or in neither.

One pass reads the headers alone. Each image is then read where it lies (`data.images.TarMember`), in any order and by
several processes, so that nothing is unpacked, and a tar gives the same data set as the folders that were packed in it.
"""

import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from tqdm import tqdm

from configs.arguments import counted
from configs.errors import UserError
from configs.reading import Unreadable, patiently
from data.images import TarMember
from data.sources.class_folders import PARTS, SUFFIXES, ListedImage, Listing, is_hidden
from data.sources.image_source import alike_in_print, is_utf8, name_some, shown


def list_tar(path: Path) -> Listing:
    """List the classes and the images of a tar, and everything that does not belong there.

    Raises:
        UserError: The tar is damaged, or has no images.
    """
    images: list[ListedImage] = []
    refused: list[str] = []
    for name, member in members(path):
        place = PurePosixPath(name)
        if any(map(is_hidden, place.parts)):
            continue
        if member.isreg() and not member.issparse() and place.name.lower().endswith(SUFFIXES):
            file = TarMember(path, name, member.offset_data, member.size)
            images.append(ListedImage(place.parent.name, place.name, member.size, file))
        else:
            kind = " (a link)" if member.islnk() or member.issym() else " (sparse)" if member.issparse() else ""
            refused.append(f"{shown(name)}{kind}")
    images.sort(key=lambda image: image[:2])
    names = sorted({image.class_name for image in images})
    if not names:
        raise UserError(f"{path}: no image in it ({', '.join(SUFFIXES)}); copy or download it again, or remove it")
    if len(names) == 1 and names[0].lower() in PARTS:  # the folder of the part was packed, not what is in it
        images, names = [image._replace(class_name="") for image in images], [""]
    found = {
        f"not image files ({', '.join(SUFFIXES)})": refused,
        "class names that are not UTF-8": [shown(name) for name in names if not is_utf8(name)],
        "images beside class folders": [shown(image.name) for image in images if not image.class_name and names[1:]],
        "images that are there twice": [
            shown(str(PurePosixPath(*one[:2]))) for one, other in pairwise(images) if one[:2] == other[:2]
        ],
    }
    problems = [
        f"{path}: {what}: {name_some(which)}; unpack it and mend that" for what, which in found.items() if which
    ]
    problems += [f"{path}: {each}" for each in alike_in_print(names)]
    return Listing(counted(len(names), "class", "classes"), tuple(names), images, problems)


def members(path: Path, *, is_shown: bool = True) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Yield path and header of everything in a tar that is no folder; a tar in it is a folder of its members."""
    size = patiently(path, path.stat).st_size
    hides = None if is_shown else True  # None: where there is no terminal
    with (
        patiently(path, lambda: path.open("rb")) as file,
        tqdm(total=size, desc=f"reading {path.name}", unit="B", unit_scale=True, disable=hides) as progress,
    ):
        try:
            for name, member in _walk(file, "", size):
                yield name, member
                progress.update(member.offset_data - progress.n)
        except OSError as error:
            raise Unreadable(path, error) from None
        except tarfile.TarError as error:
            raise UserError(f"{path}: is no tar, or is damaged: {error}; copy or download it again") from None


def _walk(file: BinaryIO, name: str, end: int) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Yield what `members` yields of the tar that begins at the file's position and ends before byte ``end``."""
    with tarfile.open(fileobj=file, mode="r:") as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # A million headers would fill a gigabyte.
            inner, last = str(PurePosixPath(name, member.name)), member.offset_data + member.size
            if member.isreg() and not member.issparse() and last > end:
                raise tarfile.ReadError(f"{shown(inner)} is cut off")
            if member.isreg() and inner.lower().endswith(".tar"):
                file.seek(member.offset_data)
                yield from _walk(file, inner[: -len(".tar")], last)
            elif not member.isdir():
                yield inner, member
        # The end of a tar is an empty block; `next` also returns None at a damaged header and at the end of the file.
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError(f"{shown(name) or 'the tar'} has no end at byte {archive.offset:,}")
