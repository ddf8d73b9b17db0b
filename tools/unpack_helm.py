"""Take the program of Helm out of the package that AWS ships it in: `python tools/unpack_helm.py FOLDER`."""

import io
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path


def main(folder: Path) -> None:
    """Leave nothing but the program in the folder; the package is below `package`."""
    (archive,) = (folder / "package").rglob("lambda-layer-kubectl-*.tgz")
    with tarfile.open(archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None, f"{archive} holds no layer"
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            (folder / "helm").write_bytes(files.read("helm/helm"))
    (folder / "helm").chmod(0o755)
    shutil.rmtree(folder / "package")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
