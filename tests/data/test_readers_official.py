"""Every official layout, a few files each, laid out as its publishers do."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from tests.data.places import touch, write

from lookalike.core.errors import LookalikeError
from lookalike.data import Table, layouts, read_table, retrieval_split


def column(table: Table, name: str) -> list[Any]:
    return table.arrow[name].to_pylist()


def by_path(table: Table, *names: str) -> dict[str, tuple[Any, ...]]:
    return dict(zip(column(table, "path"), zip(*(column(table, n) for n in names), strict=True), strict=True))


def cub(root: Path) -> Path:
    names = ["001.Black_footed_Albatross/A_0046_18.jpg", "100.Brown_Pelican/B_1.jpg", "101.White_Pelican/C 2.jpg"]
    touch(root, *(f"images/{name}" for name in names))
    return write(
        root,
        {
            "images.txt": "".join(f"{i} {name}\n" for i, name in enumerate(names, 1)),
            "image_class_labels.txt": "1 1\n2 100\n3 101\n",
            "train_test_split.txt": "1 0\n2 1\n3 1\n",
            "classes.txt": "1 001.Black_footed_Albatross\n100 100.Brown_Pelican\n101 101.White_Pelican\n",
            "bounding_boxes.txt": "1 60.0 27.0 325.0 304.0\n2 1.0 1.0 5.0 5.0\n3 1.0 1.0 5.0 5.0\n",
        },
    )


def check_cub(table: Table) -> None:
    assert by_path(table, "label", "split") == {
        "images/001.Black_footed_Albatross/A_0046_18.jpg": ("001.Black_footed_Albatross", "test"),
        "images/100.Brown_Pelican/B_1.jpg": ("100.Brown_Pelican", "train"),
        "images/101.White_Pelican/C 2.jpg": ("101.White_Pelican", "train"),
    }
    parted = retrieval_split(table)
    assert column(parted, "split") == ["train", "train", "test"]
    assert column(parted, "official_split") == ["test", "train", "train"]
    assert table.box(0) is None


CARS = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Acura TL Sedan 2012"]


def _annotations(rows: list[dict[str, Any]]) -> np.ndarray:
    kinds = [(name, object) for name in rows[0]]
    return np.array([tuple(row.values()) for row in rows], kinds).reshape(1, -1)


def cars_merged(root: Path) -> Path:
    touch(root, "car_ims/000001.jpg", "car_ims/000002.jpg", "car_ims/000003.jpg")
    rows = [
        {"relative_im_path": f"car_ims/00000{i}.jpg", "bbox_x1": 1, "class": c, "test": t}
        for i, (c, t) in enumerate([(1, 0), (1, 1), (3, 0)], 1)
    ]
    savemat(root / "cars_annos.mat", {"annotations": _annotations(rows), "class_names": np.array([CARS], object)})
    return root


def cars_devkit(root: Path) -> Path:
    touch(root, "cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg")
    kit = root / "devkit"
    kit.mkdir()
    savemat(kit / "cars_meta.mat", {"class_names": np.array([CARS], object)})
    rows = [{"bbox_x1": 1, "class": c, "fname": f"0000{i}.jpg"} for i, c in ((1, 1), (2, 3))]
    savemat(kit / "cars_train_annos.mat", {"annotations": _annotations(rows)})
    rows = [{"bbox_x1": 1, "class": 1, "fname": "00001.jpg"}]
    savemat(root / "cars_test_annos_withlabels.mat", {"annotations": _annotations(rows)})
    return root


def cars_folders(root: Path) -> Path:
    touch(root, "001.AM/1.jpg", "001.AM/2.jpg", "003.Acura/3.jpg")
    rows = "".join(f"{i},{name},x\n" for i, name in enumerate(CARS, 1))
    return write(
        root,
        {
            "classes.csv": f"class,name,folder\n{rows}",
            "split.csv": "path,class,official_split\n"
            "001.AM/1.jpg,1,train\n001.AM/2.jpg,1,test\n003.Acura/3.jpg,3,train\n",
        },
    )


def check_cars(table: Table) -> None:
    rows = sorted(zip(column(table, "label"), column(table, "class_id"), column(table, "split"), strict=True))
    assert rows == [(CARS[0], 1, "test"), (CARS[0], 1, "train"), (CARS[2], 3, "train")]
    assert column(retrieval_split(table), "split") == ["train"] * 3  # classes 1 to 98


def sop(root: Path) -> Path:
    touch(root, "bicycle_final/1_0.JPG", "bicycle_final/1_1.JPG", "chair_final/2_0.JPG")
    head = "image_id class_id super_class_id path\n"
    return write(
        root,
        {
            "Ebay_train.txt": f"{head}1 1 1 bicycle_final/1_0.JPG\n2 1 1 bicycle_final/1_1.JPG\n",
            "Ebay_test.txt": f"{head}59552 11319 3 chair_final/2_0.JPG\n",
            "Ebay_info.txt": "whatever",
        },
    )


def check_sop(table: Table) -> None:
    assert column(table, "label") == ["1", "1", "11319"]
    assert column(table, "coarse") == ["bicycle", "bicycle", "chair"]
    assert column(table, "split") == ["train", "train", "test"]
    assert column(retrieval_split(table), "split") == ["train", "train", "test"]


def in_shop(root: Path) -> Path:
    names = [f"img/WOMEN/Dresses/id_0000000{i}/0{j}_1_front.jpg" for i, j in ((2, 1), (3, 1), (3, 2))]
    touch(root, *(f"Img/{name}" for name in names))
    status = zip(names, ("id_00000002", "id_00000003", "id_00000003"), ("train", "query", "gallery"), strict=True)
    return write(
        root,
        {
            "Eval/list_eval_partition.txt": "3\nimage_name item_id evaluation_status\n"
            + "".join(f"{name}      {item} {what}  \n" for name, item, what in status),
            "Anno/list_bbox_inshop.txt": "3\nimage_name clothes_type pose_type x_1 y_1 x_2 y_2\n"
            + "".join(f"{name}   1 1 05 010 200 {250 + i}\n" for i, name in enumerate(names)),
        },
    )


def check_in_shop(table: Table) -> None:
    assert column(table, "label") == ["id_00000002", "id_00000003", "id_00000003"]
    assert column(table, "split") == ["train", "test", "test"]
    assert table.column("is_query").tolist() == [False, True, False]
    assert table.column("is_gallery").tolist() == [False, False, True]
    assert column(table, "coarse") == ["WOMEN/Dresses"] * 3
    assert table.box(0) is None, "whole images, unless its boxes are asked for"
    assert column(retrieval_split(table), "split") == ["train", "test", "test"]


def deepfashion2(root: Path) -> Path:
    def item(style: int, category: int, box: list[int]) -> dict[str, Any]:
        name = {1: "short sleeve top", 8: "trousers"}[category]
        return {"style": style, "category_id": category, "category_name": name, "bounding_box": box, "scale": 2}

    about: dict[str, Any] = {
        "train/annos/000001": {
            "source": "user",
            "pair_id": 1,
            "item1": item(1, 1, [1, 2, 30, 40]),
            "item2": item(0, 8, [5, 6, 7, 8]),
        },
        "validation/annos/000001": {"source": "user", "pair_id": 9, "item1": item(2, 1, [1, 1, 9, 9])},
        "validation/annos/000002": {"source": "shop", "pair_id": 9, "item1": item(2, 1, [2, 2, 9, 9])},
    }
    touch(root, "train/image/000001.jpg", "validation/image/000001.jpg", "validation/image/000002.jpg")
    return write(root, {f"{name}.json": json.dumps(document) for name, document in about.items()})


def check_deepfashion2(table: Table) -> None:
    assert column(table, "label") == ["1-1", None, "9-2", "9-2"]
    assert column(table, "coarse") == ["short sleeve top", "trousers", "short sleeve top", "short sleeve top"]
    assert column(table, "domain") == ["user", "user", "user", "shop"]
    assert column(table, "split") == ["train", "train", "val", "val"]
    assert table.column("is_query").tolist() == [False, False, True, False]
    assert table.column("is_gallery").tolist() == [False, False, False, True]
    assert table.box(0) == (1, 2, 30, 40)
    assert column(table, "row_id")[1].endswith("train/image/000001.jpg#5,6,7,8")
    assert column(retrieval_split(table), "split") == ["train", "train", "test", "test"]


def pacs(root: Path) -> Path:
    touch(
        root,
        *(f"{d}/{c}/pic_001.jpg" for d in ("art_painting", "cartoon", "photo", "sketch") for c in ("dog", "house")),
    )
    return write(
        root,
        {
            "photo_train_kfold.txt": "photo/dog/pic_001.jpg 1\n",
            "photo_crossval_kfold.txt": "photo/house/pic_001.jpg 6\n",
            "photo_test_kfold.txt": "photo/dog/pic_001.jpg 1\nphoto/house/pic_001.jpg 6\n",
        },
    )


def check_pacs(table: Table) -> None:
    assert len(table) == 8
    assert table.labels("domain")[1] == ["art_painting", "cartoon", "photo", "sketch"]
    assert table.labels()[1] == ["dog", "house"]
    rows = by_path(table, "domain", "label", "split")
    assert rows["photo/dog/pic_001.jpg"] == ("photo", "dog", "train")
    assert rows["photo/house/pic_001.jpg"] == ("photo", "house", "val")
    assert rows["sketch/dog/pic_001.jpg"] == ("sketch", "dog", None)


def domainnet(root: Path) -> Path:
    touch(root, "real/aircraft_carrier/real_001_000001.jpg", "sketch/zebra/sketch_345_000001.jpg")
    return write(
        root,
        {
            "real_list.txt": "real/aircraft_carrier/real_001_000001.jpg 0\n",
            "sketch_list.txt": "sketch/zebra/sketch_345_000001.jpg 125\n",
        },
    )


def check_domainnet(table: Table) -> None:
    assert by_path(table, "domain", "label", "class_id") == {
        "real/aircraft_carrier/real_001_000001.jpg": ("real", "aircraft_carrier", 0),
        "sketch/zebra/sketch_345_000001.jpg": ("sketch", "zebra", 125),
    }
    assert not table.has("split")


def domainnet_splits(root: Path) -> Path:
    touch(root, "real/zebra/1.jpg", "real/zebra/2.jpg")
    return write(root, {"real_train.txt": "real/zebra/1.jpg 125\n", "real_test.txt": "real/zebra/2.jpg 125\n"})


def check_domainnet_splits(table: Table) -> None:
    assert by_path(table, "domain", "label", "split") == {
        "real/zebra/1.jpg": ("real", "zebra", "train"),
        "real/zebra/2.jpg": ("real", "zebra", "test"),
    }


def domainnet_lists_apart(root: Path) -> Path:
    domainnet(root)
    (root / "image_list").mkdir()
    for file in root.glob("*.txt"):
        shutil.move(file, root / "image_list")
    return root


def domainnet_folders(root: Path) -> Path:
    return touch(root, *(f"{d}/{c}/1.jpg" for d in ("clipart", "painting", "real", "sketch") for c in ("bus", "zebra")))


def check_domainnet_folders(table: Table) -> None:
    assert table.labels()[1] == ["bus", "zebra"]
    assert by_path(table, "domain", "label")["painting/zebra/1.jpg"] == ("painting", "zebra")


def visda(root: Path) -> Path:
    touch(root, "train/aeroplane/src_1.png", "validation/aeroplane/1.jpg", "test/trunk00/2.jpg")
    return write(
        root,
        {
            "train/image_list.txt": "aeroplane/src_1.png 0\n",
            "validation/image_list.txt": "aeroplane/1.jpg 0\n",
            "test/image_list.txt": "trunk00/2.jpg 0\n",
        },
    )


def visda_lists(root: Path) -> Path:
    visda(root)
    for split in ("train", "validation", "test"):
        (root / split / "image_list.txt").unlink()
    return write(
        root,
        {
            "train_list.txt": "train/aeroplane/src_1.png 0\n",
            "validation_list.txt": "validation/aeroplane/1.jpg 0\n",
            "test_list.txt": "test/trunk00/2.jpg 0\n",
        },
    )


def check_visda(table: Table) -> None:
    assert by_path(table, "label", "split", "domain") == {
        "train/aeroplane/src_1.png": ("aeroplane", "train", "synthetic"),
        "validation/aeroplane/1.jpg": ("aeroplane", "val", "real"),
        "test/trunk00/2.jpg": ("aeroplane", "test", "real"),
    }


def imagenet_folders(root: Path) -> Path:
    return touch(root, "train/n01440764/n01440764_18.JPEG", "val/n01440764/ILSVRC2012_val_00000293.JPEG")


def check_imagenet_folders(table: Table) -> None:
    assert by_path(table, "label", "split") == {
        "train/n01440764/n01440764_18.JPEG": ("n01440764", "train"),
        "val/n01440764/ILSVRC2012_val_00000293.JPEG": ("n01440764", "val"),
    }


def imagenet_kaggle(root: Path) -> Path:
    base = "ILSVRC/Data/CLS-LOC"
    touch(
        root, f"{base}/train/n01440764/n01440764_18.JPEG", f"{base}/val/ILSVRC2012_val_1.JPEG", f"{base}/test/t_1.JPEG"
    )
    return write(
        root,
        {
            "LOC_synset_mapping.txt": "n01440764 tench, Tinca tinca\nn01751748 sea snake\n",
            "LOC_val_solution.csv": "ImageId,PredictionString\nILSVRC2012_val_1,n01751748 111 108 230 365 \n",
        },
    )


def check_imagenet_kaggle(table: Table) -> None:
    base = "ILSVRC/Data/CLS-LOC"
    assert by_path(table, "label", "split", "words") == {
        f"{base}/train/n01440764/n01440764_18.JPEG": ("n01440764", "train", "tench, Tinca tinca"),
        f"{base}/val/ILSVRC2012_val_1.JPEG": ("n01751748", "val", "sea snake"),
    }


def imagenet_kit(root: Path) -> Path:
    touch(root, "train/n01440764/n01440764_18.JPEG", *(f"val/ILSVRC2012_val_0000000{i}.JPEG" for i in (1, 2)))
    kit = root / "ILSVRC2012_devkit_t12" / "data"
    kit.mkdir(parents=True)
    rows = [{"ILSVRC2012_ID": i, "WNID": wnid} for i, wnid in ((1, "n01440764"), (2, "n01751748"))]
    savemat(kit / "meta.mat", {"synsets": _annotations(rows).reshape(-1, 1)})
    return write(kit, {"ILSVRC2012_validation_ground_truth.txt": "2\n1\n"})


def check_imagenet_kit(table: Table) -> None:
    assert by_path(table, "label", "split") == {
        "train/n01440764/n01440764_18.JPEG": ("n01440764", "train"),
        "val/ILSVRC2012_val_00000001.JPEG": ("n01751748", "val"),
        "val/ILSVRC2012_val_00000002.JPEG": ("n01440764", "val"),
    }


def tiny(root: Path) -> Path:
    touch(root, "train/n01443537/images/n01443537_0.JPEG", "val/images/val_0.JPEG", "test/images/test_0.JPEG")
    return write(
        root,
        {
            "train/n01443537/n01443537_boxes.txt": "n01443537_0.JPEG\t0\t10\t63\t58\n",
            "val/val_annotations.txt": "val_0.JPEG\tn03444034\t0\t32\t44\t62\n",
            "wnids.txt": "n01443537\nn03444034\n",
            "words.txt": "n01443537\tgoldfish, Carassius auratus\nn03444034\tgo-kart\n",
        },
    )


def check_tiny(table: Table) -> None:
    assert by_path(table, "label", "split", "words") == {
        "train/n01443537/images/n01443537_0.JPEG": ("n01443537", "train", "goldfish, Carassius auratus"),
        "val/images/val_0.JPEG": ("n03444034", "val", "go-kart"),
    }


def tiny_folders(root: Path) -> Path:
    touch(root, "train/n01443537/n01443537_0.jpg", "val/n01443537/val_1.jpg")
    return write(root, {"classes.csv": 'class,wnid,words\n0,n01443537,"goldfish, Carassius auratus"\n'})


def check_tiny_folders(table: Table) -> None:
    assert by_path(table, "label", "split", "words") == {
        "train/n01443537/n01443537_0.jpg": ("n01443537", "train", "goldfish, Carassius auratus"),
        "val/n01443537/val_1.jpg": ("n01443537", "val", "goldfish, Carassius auratus"),
    }


def _voc(*objects: tuple[str, int]) -> str:
    inner = "".join(
        f"<object><name>{name}</name><difficult>{d}</difficult><part><name>head</name></part></object>"
        for name, d in objects
    )
    return f"<annotation><filename>x.jpg</filename><size><width>5</width></size>{inner}</annotation>"


def voc07(root: Path) -> Path:
    touch(root, *(f"JPEGImages/00000{i}.jpg" for i in (1, 2, 3)))
    return write(
        root,
        {
            "Annotations/000001.xml": _voc(("dog", 0), ("person", 0), ("person", 1)),
            "Annotations/000002.xml": _voc(("car", 1)),
            "Annotations/000003.xml": _voc(("cat", 0)),
            "ImageSets/Main/train.txt": "000001\n",
            "ImageSets/Main/val.txt": "000002\n",
            "ImageSets/Main/trainval.txt": "000001\n000002\n",
            "ImageSets/Main/test.txt": "000003\n",
            "ImageSets/Main/dog_train.txt": "000001  1\n",
        },
    )


def check_voc07(table: Table) -> None:
    assert by_path(table, "label", "difficult", "split") == {
        "JPEGImages/000001.jpg": (["dog", "person"], [], "train"),
        "JPEGImages/000002.jpg": ([], ["car"], "val"),
        "JPEGImages/000003.jpg": (["cat"], [], "test"),
    }
    assert table.label_matrix()[1] == ["cat", "dog", "person"]


def aircraft(root: Path) -> Path:
    names = {"train": "1025794", "val": "0481847", "test": "1514522"}
    touch(root, *(f"images/{name}.jpg" for name in names.values()))
    texts = {}
    for split, name in names.items():
        texts[f"images_variant_{split}.txt"] = f"{name} 707-320\n"
        texts[f"images_family_{split}.txt"] = f"{name} Boeing 707\n"
        texts[f"images_manufacturer_{split}.txt"] = f"{name} Boeing\n"
    return write(root, texts)


def check_aircraft(table: Table) -> None:
    assert by_path(table, "label", "coarse", "manufacturer", "split")["images/0481847.jpg"] == (
        "707-320",
        "Boeing 707",
        "Boeing",
        "val",
    )
    assert column(table, "split") == ["train", "val", "test"]


def mit67(root: Path) -> Path:
    touch(root, "Images/kitchen/int474.jpg", "Images/airport_inside/a b.jpg", "Images/kitchen/unlisted.jpg")
    return write(root, {"TrainImages.txt": "kitchen/int474.jpg\n", "TestImages.txt": "airport_inside/a b.jpg"})


def check_mit67(table: Table) -> None:
    assert by_path(table, "label", "split") == {
        "Images/kitchen/int474.jpg": ("kitchen", "train"),
        "Images/airport_inside/a b.jpg": ("airport_inside", "test"),
    }


def dogs(root: Path) -> Path:
    files = {
        "train": ["n02085620-Chihuahua/n1.jpg", "n02085782-Japanese_spaniel/n2.jpg"],
        "test": ["n02085620-Chihuahua/n3.jpg"],
    }
    for split, names in files.items():
        touch(root, *(f"Images/{name}" for name in names))
        cells = np.array([[name] for name in names], object)
        labels = np.array([[1 if "Chi" in name else 2] for name in names])
        savemat(root / f"{split}_list.mat", {"file_list": cells, "annotation_list": cells, "labels": labels})
    return root


def check_dogs(table: Table) -> None:
    assert by_path(table, "label", "class_id", "split") == {
        "Images/n02085620-Chihuahua/n1.jpg": ("Chihuahua", 1, "train"),
        "Images/n02085782-Japanese_spaniel/n2.jpg": ("Japanese_spaniel", 2, "train"),
        "Images/n02085620-Chihuahua/n3.jpg": ("Chihuahua", 1, "test"),
    }


def grocery(root: Path) -> Path:
    names = [f"{split}/Fruit/Apple/Granny-Smith/Granny-Smith_001.jpg" for split in ("train", "val", "test")]
    touch(root, *names)
    head = "Class Name (str),Class ID (int),Coarse Class Name (str),Coarse Class ID (int),Iconic Image Path (str)\n"
    lists = {f"{name.partition('/')[0]}.txt": f"{name}, 1, 0\n" for name in names}
    return write(
        root, {"classes.csv": f"{head}Golden-Delicious,0,Apple,0,/a.jpg\nGranny-Smith,1,Apple,0,/b.jpg\n", **lists}
    )


def check_grocery(table: Table) -> None:
    assert column(table, "label") == ["Granny-Smith"] * 3
    assert column(table, "coarse") == ["Apple"] * 3
    assert column(table, "split") == ["train", "val", "test"]
    assert column(table, "is_query") == [False, False, True]
    assert column(table, "is_gallery") == [True, True, False]


OFFICIAL = {
    "cub": [(cub, check_cub)],
    "cars": [(cars_merged, check_cars), (cars_devkit, check_cars), (cars_folders, check_cars)],
    "sop": [(sop, check_sop)],
    "in-shop": [(in_shop, check_in_shop)],
    "deepfashion2": [(deepfashion2, check_deepfashion2)],
    "pacs": [(pacs, check_pacs)],
    "domainnet": [
        (domainnet, check_domainnet),
        (domainnet_lists_apart, check_domainnet),
        (domainnet_splits, check_domainnet_splits),
        (domainnet_folders, check_domainnet_folders),
    ],
    "visda": [(visda, check_visda), (visda_lists, check_visda)],
    "imagenet": [
        (imagenet_folders, check_imagenet_folders),
        (imagenet_kaggle, check_imagenet_kaggle),
        (imagenet_kit, check_imagenet_kit),
    ],
    "tiny-imagenet": [(tiny, check_tiny), (tiny_folders, check_tiny_folders)],
    "voc07": [(voc07, check_voc07)],
    "aircraft": [(aircraft, check_aircraft)],
    "mit-67": [(mit67, check_mit67)],
    "dogs": [(dogs, check_dogs)],
    "grocery": [(grocery, check_grocery)],
}
CASES = [pytest.param(name, *pair, id=pair[0].__name__) for name, pairs in OFFICIAL.items() for pair in pairs]


@pytest.mark.parametrize(("name", "make", "check"), CASES)
def test_an_official_layout(tmp_path: Path, name: str, make: Any, check: Any) -> None:
    root = tmp_path / "set"
    root.mkdir()
    make(root)
    message, named = read_table(root), read_table(root, layout=name)
    assert message.notes["layout"] == name
    assert message.fingerprint() == named.fingerprint()
    check(message)
    for i in range(len(message)):
        assert message.open_bytes(i) == b"x"
    assert column(message, "size") == [1] * len(message)


def test_every_layout_has_its_case() -> None:
    general = {"auto", "folder", "domains", "table", "list", "webdataset"}
    variants = {"in-shop-boxes", "deepfashion2-category"}  # of layouts with a case, read when asked for
    assert set(OFFICIAL) == set(layouts()) - general - variants


@pytest.mark.parametrize(
    ("name", "inside", "make"),
    [
        ("cub", "CUB_200_2011", cub),
        ("voc07", "VOCdevkit/VOC2007", voc07),
        ("aircraft", "data", aircraft),
        ("sop", "Stanford_Online_Products", sop),
        ("pacs", "PACS/kfold", pacs),
    ],
)
def test_a_data_set_one_folder_further_in(tmp_path: Path, name: str, inside: str, make: Any) -> None:
    (tmp_path / inside).mkdir(parents=True)
    make(tmp_path / inside)
    assert read_table(tmp_path).notes["layout"] == name


def test_other_spellings_of_a_layout(tmp_path: Path) -> None:
    assert read_table(cub(tmp_path), layout="CUB 200 2011").notes["layout"] == "cub"
    with pytest.raises(LookalikeError, match="needs the data set's folder"):
        read_table(tmp_path / "images.txt", layout="cub")
    with pytest.raises(LookalikeError, match="not laid out as Stanford Cars"):
        read_table(tmp_path, layout="Cars196")


def test_annotations_that_are_no_annotations(tmp_path: Path) -> None:
    voc07(tmp_path)
    bomb = '<!DOCTYPE a [<!ENTITY b "boom">]><annotation><object><name>&b;</name></object></annotation>'
    (tmp_path / "Annotations/000001.xml").write_text(bomb)
    with pytest.raises(LookalikeError, match="declares a document type"):
        read_table(tmp_path)
    (tmp_path / "Annotations/000001.xml").write_text("<annotation><object>")
    with pytest.raises(LookalikeError, match="damaged"):
        read_table(tmp_path)
    (tmp_path / "Annotations/000001.xml").unlink()
    with pytest.raises(LookalikeError, match="is missing"):
        read_table(tmp_path)


def test_a_matlab_list_that_is_none(tmp_path: Path) -> None:
    dogs(tmp_path)
    (tmp_path / "train_list.mat").write_bytes(b"MATLAB 5.0 MAT-file, they said")
    with pytest.raises(LookalikeError, match="cannot be read as a MATLAB file"):
        read_table(tmp_path)


def test_validation_images_without_their_list(tmp_path: Path) -> None:
    tiny(tmp_path)
    (tmp_path / "val/val_annotations.txt").unlink()
    with pytest.raises(LookalikeError, match="list of validation labels is missing"):
        read_table(tmp_path)


def test_in_shop_boxes_are_read_when_requested(tmp_path: Path) -> None:
    in_shop(tmp_path)
    table = read_table(tmp_path, layout="in-shop-boxes")
    assert [table.box(i) for i in range(3)] == [(5, 10, 200, 250), (5, 10, 200, 251), (5, 10, 200, 252)]
    shutil.rmtree(tmp_path / "Anno")
    with pytest.raises(LookalikeError, match=r"list_bbox_inshop\.txt` is missing"):
        read_table(tmp_path, layout="in-shop-boxes")


def test_deepfashion2_by_category(tmp_path: Path) -> None:
    table = read_table(deepfashion2(tmp_path), layout="deepfashion2-category")
    assert column(table, "label") == ["1-1-1", None, "9-1-2", "9-1-2"]


def test_in_shop_with_a_box_missing_keeps_the_others(tmp_path: Path) -> None:
    in_shop(tmp_path)
    file = tmp_path / "Anno/list_bbox_inshop.txt"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    table = read_table(tmp_path, layout="in-shop-boxes")
    assert [table.box(i) for i in range(3)] == [(5, 10, 200, 250), (5, 10, 200, 251), None]


def test_voc_with_one_list_for_train_and_val(tmp_path: Path) -> None:
    voc07(tmp_path)
    for name in ("train", "val"):
        (tmp_path / f"ImageSets/Main/{name}.txt").unlink()
    assert column(read_table(tmp_path), "split") == ["train", "train", "test"]
    for name in ("trainval", "test"):
        (tmp_path / f"ImageSets/Main/{name}.txt").unlink()
    with pytest.raises(LookalikeError, match="its lists name no images"):
        read_table(tmp_path)


def test_a_split_may_be_called_as_its_publishers_do(tmp_path: Path) -> None:
    assert column(read_table(tiny(tmp_path), split="validation"), "split") == ["val"]


@pytest.mark.parametrize(
    ("make", "file", "old", "new", "error_text"),
    [
        (cub, "image_class_labels.txt", "1 1\n", "", "image_class_labels.txt` has no line for `1`"),
        (cub, "train_test_split.txt", "2 1\n", "", "train_test_split.txt` has no line for `2`"),
        (cars_folders, "split.csv", "official_split", "part", "KeyError: 'official_split'"),
        (sop, "Ebay_train.txt", " bicycle_final/1_1.JPG", "", "laid out as Stanford Online Products, but one of its"),
        (in_shop, "Eval/list_eval_partition.txt", " train", "", "laid out as In-Shop"),
        (deepfashion2, "train/annos/000001.json", '"pair_id"', '"pair"', "KeyError: 'pair_id'"),
        (grocery, "train.txt", ", 1, 0", "", "laid out as Grocery Store"),
    ],
)
def test_a_shortened_list_is_answered_in_one_line(
    tmp_path: Path, make: Any, file: str, old: str, new: str, error_text: str
) -> None:
    path = make(tmp_path) / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(LookalikeError, match=re.escape(error_text)):
        read_table(tmp_path)


def test_a_list_that_is_missing_is_named(tmp_path: Path) -> None:
    cub(tmp_path)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(LookalikeError, match=r"classes\.txt` is missing"):
        read_table(tmp_path)
