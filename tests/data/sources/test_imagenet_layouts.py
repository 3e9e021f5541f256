"""ImageNet as people have it, flat, in Kaggle's tree and in tars: the same data set as its class folders, or a line."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from configs.errors import UserError
from data.__main__ import main
from data.prepare import check_source, prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from tests.data.sources.test_folders import jpeg

CLASSES = ("n03", "n01", "n02")
"""In the order of the devkit's numbers, which is not that of the names."""
VALIDATION = ("n02", "n01", "n03", "n01", "n02")


def shell(command: str, folder: Path) -> None:
    subprocess.run(["bash", "-ec", command], cwd=folder, check=True)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make train and val as class folders, val flat, and files of labels; every image has another grey."""
    root = tmp_path_factory.mktemp("imagenet")
    names = [f"train/{each}/{each}_{number}.JPEG" for each in CLASSES for number in range(3)]
    flat = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 6)]
    names += [f"val/{label}/{name}" for label, name in zip(VALIDATION, flat, strict=True)]
    for grey, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg(16 * grey) + bytes(grey % 3))
    devkit = root / "ILSVRC2012_devkit_t12/data"
    devkit.mkdir(parents=True)
    numbers = [f"{CLASSES.index(label) + 1}\n" for label in VALIDATION]
    (devkit / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(numbers))
    fields = (
        "ILSVRC2012_ID",
        "WNID",
        "words",
        "gloss",
        "num_children",
        "children",
        "wordnet_height",
        "num_train_images",
    )
    synsets = np.empty((4, 1), [(field, object) for field in fields])
    for row, name in enumerate((*CLASSES, "n00")):  # the last one is no class, but stands above the three
        children = [1.0, 2.0, 3.0] if name == "n00" else []
        synsets[row, 0] = (float(row + 1), name, f"a, {name}", "what it is", float(len(children)), children, 0.0, 3.0)
    savemat(devkit / "meta.mat", {"synsets": synsets}, do_compression=True)
    boxes = [
        f"{Path(name).stem},{label} 1 2 3 4 {label} 5 6 7 8\n" for label, name in zip(VALIDATION, flat, strict=True)
    ]
    (root / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(reversed(boxes)))
    (root / "imagenet_2012_validation_synset_labels.txt").write_text("\n".join(VALIDATION))
    shell("mkdir flat; cp val/*/* flat; tar czf ILSVRC2012_devkit_t12.tar.gz ILSVRC2012_devkit_t12", root)
    shell("cd flat; tar cf ../ILSVRC2012_img_val.tar *", root)
    shell(
        "cp -r train tars; cd tars; for n in n*; do tar cf $n.tar -C $n .; done; rm -r n0?; tar cf ../all.tar n*", root
    )
    shell("rm -r tars; mv all.tar ILSVRC2012_img_train.tar", root)
    return root


KAGGLE = """
mkdir -p ILSVRC/Data/CLS-LOC/test ILSVRC/Annotations/CLS-LOC/train/n01; touch ILSVRC/Annotations/CLS-LOC/train/n01/a.xml
cp -r $I/train ILSVRC/Data/CLS-LOC; cp -r $I/flat ILSVRC/Data/CLS-LOC/val; cp $I/flat/*1.JPEG ILSVRC/Data/CLS-LOC/test
cp $I/LOC_val_solution.csv .
"""
FLAT = "cp -r $I/train .; cp -r $I/flat val; "
TARS = "cp $I/*img_train.tar $I/*img_val.tar .; "
# What bash makes of the images in $I, the folder to give, and what is said of the validation part.
LAYOUTS = {
    "class folders": ("cp -r $I/train $I/val .", ".", "train: 3 class folders; val: 3 class folders"),
    "Kaggle's top": (KAGGLE, ".", "train: 3 class folders; val: flat, labels from LOC_val_solution.csv"),
    "Kaggle's images": (KAGGLE, "ILSVRC/Data/CLS-LOC", "val: flat, labels from LOC_val_solution.csv"),
    "devkit": (FLAT + "cp -r $I/*_t12 .", ".", "val: flat, labels from ILSVRC2012_validation_ground_truth.txt"),
    "devkit's files": (FLAT + "cp $I/*_t12/data/* .", ".", "labels from ILSVRC2012_validation_ground_truth.txt"),
    "list of ids": (
        FLAT + "cp $I/imagenet_*.txt .",
        ".",
        "flat, labels from imagenet_2012_validation_synset_labels.txt",
    ),
    "tars": (
        TARS + "cp $I/*_t12.tar.gz .",
        ".",
        "ILSVRC2012_img_train.tar: 3 classes; ILSVRC2012_img_val.tar: flat, labels from ILSVRC2012_devkit_t12.tar.gz",
    ),
    "tars, and Kaggle's table above": (
        "cp $I/*.csv .; mkdir in; cd in; " + TARS,
        "in",
        "ILSVRC2012_img_val.tar: flat, labels from LOC_val_solution.csv",
    ),
    "a tar of val": (
        "cp -r $I/train .; cp $I/*img_val.tar val.tar; cp $I/*.csv .",
        ".",
        "train: 3 class folders; val.tar: flat",
    ),
    "tars of class folders": (
        "for n in train val; do tar cf $n.tar -C $I/$n ./n03 ./n01 ./n02; done",
        ".",
        "train.tar: 3 classes; val.tar: 3 classes",
    ),
    "tars of the parts": (
        "cp $I/*.csv .; tar cf train.tar -C $I train; cp -r $I/flat val; tar cf val.tar val; rm -r val",
        ".",
        "train.tar: 3 classes; val.tar: flat",
    ),
}


def made(imagenet: Path, folder: Path, command: str) -> Path:
    folder.mkdir(exist_ok=True)
    shell(f"I={imagenet}; {command}", folder)
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_the_data_set_of_the_class_folders(imagenet: Path, tmp_path: Path, layout: str) -> None:
    command, given, told = LAYOUTS[layout]
    source = open_source(str(made(imagenet, tmp_path, command) / given), Settings())
    assert [*check_source(source)] == []
    assert source.class_names == ("n01", "n02", "n03")
    for part, split in (("train", source.train), ("val", source.eval)):
        files = sorted((imagenet / part).glob("*/*"))  # ImageFolder's order: by class, then by name
        assert [split.jpeg(index) for index in range(len(files))] == [file.read_bytes() for file in files]
        assert split.labels == [source.class_names.index(file.parent.name) for file in files]
    assert told in source.notes[0]
    assert source.fingerprint == open_source(str(imagenet), Settings()).fingerprint


@pytest.mark.ranks  # by its processes
def test_tars_are_packed_in_the_same_order_as_folders_by_any_number_of_workers(
    imagenet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tars = made(imagenet, tmp_path / "in", LAYOUTS["tars"][0])
    assert main(["prepare", str(tars), str(tmp_path / "out"), "--workers", "2", "--no-recipe"]) == 0
    assert f"note: {LAYOUTS['tars'][2]}\n" in capsys.readouterr().err
    prepare(open_source(str(imagenet), Settings()), tmp_path / "folders")
    for name in ("train.rec", "train.idx", "eval.rec", "eval.idx"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "folders" / name).read_bytes()


def test_of_a_tar_the_same_images_are_held_out_as_of_its_folders(imagenet: Path, tmp_path: Path) -> None:
    sources = [
        open_source(str(made(imagenet, tmp_path / name, command)), Settings(eval_share=34))
        for name, command in (("tar", "cp $I/*_train.tar ."), ("folder", "cp -r $I/train ."))
    ]
    assert len(sources[0].eval.labels) == 3
    assert sources[0].fingerprint == sources[1].fingerprint


# What bash makes of the images in $I, the folder or file to give, and the line, of which {0} is the folder.
REFUSED = [
    (FLAT, ".", "{0}/val: images without class folders, and no labels in {0} .*LOC_val_solution.csv.*t12.*; sort"),
    (TARS, ".", "{0}/ILSVRC2012_img_val.tar: images without class folders, .*; sort them"),
    (TARS, "ILSVRC2012_img_train.tar", "give the folder that holds them"),
    (FLAT + "head -n -1 $I/*.csv > LOC_val_solution.csv", ".",
     "{0}/val: images without a label in {0}/LOC_val_solution.csv: ILSVRC2012_val_00000001.JPEG; remove"),
    (FLAT + "sed s/n02/n04/ $I/*.csv > LOC_val_solution.csv", ".", "{0}/val: classes that train does not have: 'n04';"),
    (FLAT + "(cat $I/*.csv; tail -n 1 $I/*.csv) > LOC_val_solution.csv", ".",
     "{0}/LOC_val_solution.csv: named twice: ILSVRC2012_val_00000001; remove one row"),
    (FLAT + "sed 's/01,.*/01,/' $I/*.csv > LOC_val_solution.csv", ".",
     "{0}/val: images without a label in {0}/LOC_val_solution.csv: ILSVRC2012_val_00000001.JPEG; remove"),
    (FLAT + "sed 's/05,/05,\"/' $I/*.csv > LOC_val_solution.csv", ".", "the labels cannot be read .*unexpected end"),
    (FLAT + "touch ILSVRC2012_devkit_t12.tar.gz", ".", "_t12.tar.gz: the labels cannot be read .*empty file"),
    (FLAT + "printf 'a,b\nc,d' > LOC_val_solution.csv", ".", "{0}/LOC_val_solution.csv: the labels cannot be read"),
    (FLAT + "cp $I/*_t12/data/*.txt .", ".", "ground_truth.txt: the labels cannot be read .*meta.mat.*; copy or"),
    (FLAT + "head -c 300 $I/*.gz > ILSVRC2012_devkit_t12.tar.gz", ".", "_t12.tar.gz: the labels cannot be read"),
    (TARS + "truncate -s 12800 *_train.tar", ".", "{0}/ILSVRC2012_img_train.tar: .* damaged: n02.tar is cut off; copy"),
    # The header of the inner tar and that of the folder in it end at byte 1024; the header of an image is spoilt.
    (TARS + "printf xyz | dd of=ILSVRC2012_img_train.tar bs=1 seek=1100 conv=notrunc", ".", "damaged: n01 has no end"),
    (TARS + "gzip *_train.tar; mv *.gz ILSVRC2012_img_train.tar", ".", "_train.tar: is no tar, or is damaged:"),
    ("cp $I/*img_val.tar train.tar", ".", "{0}/train.tar: its images lie in no class folders; unpack it, and sort"),
    ("touch a.txt; tar cf train.tar a.txt", ".", "{0}/train.tar: no image in it"),
    ("cp -r $I/train .; ln train/n01/n01_0.JPEG train/n02/a.JPEG; truncate -s 2M train/n03/n03_0.JPEG; "
     "tar -Scf train.tar --sort=name train; rm -r train", ".",
     r"not image files .*: train/n02/a.JPEG \(a link\), train/n03/n03_0.JPEG \(sparse\); unpack it and mend that"),
    ("echo > b; tar cf train.tar b -C $I/train n01 n02", ".", "{0}/train.tar: not image files .*: b; unpack it"),
    ("tar cf train.tar -C $I/train n01 n02; tar rf train.tar -C $I/train n01", ".",
     "{0}/train.tar: images that are there twice: n01/n01_.*;"),
    ("cp $I/train/*/*1.JPEG .; tar cf train.tar *1.JPEG -C $I/train n01 n02", ".",
     "{0}/train.tar: images beside class folders: n01_1.JPEG, n02_1.JPEG, n03_1.JPEG; unpack"),
    ("cp -r $I/train t; truncate -s 200 t/n02/n02_1.JPEG; tar cf train.tar -C t n01 n02", ".",
     "{0}/train.tar: n02/n02_1.JPEG: cannot be decoded"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "given", "message"), REFUSED)
def test_what_cannot_be_packed_is_one_line(
    imagenet: Path, tmp_path: Path, command: str, given: str, message: str
) -> None:
    with pytest.raises(UserError, match=message.format(tmp_path)) as caught:
        prepare(open_source(str(made(imagenet, tmp_path, command) / given), Settings()), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert "more problems" not in str(caught.value)
    assert not (tmp_path / "out").exists()
