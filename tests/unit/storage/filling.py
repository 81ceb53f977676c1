"""Files that tests put into folders."""

from sparkdl.storage import join, make_folder, write_file


def fill(folder: str, *names: str) -> None:
    for name in names:
        path = join(folder, name)
        make_folder(path.rpartition("/")[0])
        write_file(path, name.encode())
