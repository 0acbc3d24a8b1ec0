"""The loopback Hub itself, asked by the client's own functions, so that a test against it says something."""

import hashlib

import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.hub.loopback import TOKEN, User


FILES = {"a.txt": b"one\n", "sub/b.bin": bytes(range(256)) * 40, "empty.txt": b""}


@pytest.fixture
def api(hub):
    return HfApi(token=TOKEN)


@pytest.fixture
def repo(hub, api, tmp_path):
    for name, data in FILES.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    api.create_repo("someone/x", private=True)
    api.upload_folder(repo_id="someone/x", folder_path=tmp_path / "in")
    return "someone/x"


def test_what_the_client_uploads_it_downloads(hub, api, repo, tmp_path):
    assert hub.repos["model", repo].files() == FILES
    folder = snapshot_download(repo, token=TOKEN)
    for name, data in FILES.items():
        with open(f"{folder}/{name}", "rb") as file:
            assert file.read() == data
    assert folder.endswith(hub.repos["model", repo].refs["main"])
    paths = {file.path: file for file in api.list_repo_tree(repo, recursive=True) if hasattr(file, "blob_id")}
    assert set(paths) == {*FILES, ".gitattributes"}
    # `printf 'one\n' | git hash-object --stdin`
    assert paths["a.txt"].blob_id == "5626abf0f72e58d7a153368ba57db4c673c0e171" and paths["a.txt"].lfs is None
    assert paths["sub/b.bin"].lfs.sha256 == hashlib.sha256(FILES["sub/b.bin"]).hexdigest()
    assert [item.path for item in api.list_repo_tree(repo)] == ["sub", ".gitattributes", "a.txt", "empty.txt"]
    assert api.verify_repo_checksums(repo, local_dir=folder).checked_count == len(FILES) + 1
    with api_file(repo) as file:
        file.seek(300)
        assert file.read(10) == FILES["sub/b.bin"][300:310]


def api_file(repo):
    from huggingface_hub import HfFileSystem

    return HfFileSystem(token=TOKEN, skip_instance_cache=True).open(f"{repo}/sub/b.bin", block_size=16)


def test_branches_pull_requests_and_deletions(hub, api, repo):
    api.create_branch(repo, branch="v1")
    with pytest.raises(HfHubHTTPError):
        api.create_branch(repo, branch="v1")
    api.delete_file("a.txt", repo)
    assert set(hub.repos["model", repo].files()) == set(FILES) - {"a.txt"}
    assert api.file_exists(repo, "a.txt", revision="v1") and not api.file_exists(repo, "a.txt")
    assert [branch.name for branch in api.list_repo_refs(repo).branches] == ["main", "v1"]
    commit = api.upload_file(path_or_fileobj=b"x", path_in_repo="c.txt", repo_id=repo, create_pr=True)
    assert commit.pr_num == 1 and not api.file_exists(repo, "c.txt")
    assert api.file_exists(repo, "c.txt", revision="refs/pr/1")
    (found,) = api.get_repo_discussions(repo)
    assert found.is_pull_request and found.title == "Upload c.txt with huggingface_hub"
    parent = hub.repos["model", repo].refs["main"]
    api.upload_file(path_or_fileobj=b"y", path_in_repo="d.txt", repo_id=repo, parent_commit=parent)
    with pytest.raises(HfHubHTTPError) as error:
        api.upload_file(path_or_fileobj=b"z", path_in_repo="d.txt", repo_id=repo, parent_commit=parent)
    assert error.value.response.status_code == 412


def test_who_may_do_what(hub, api, repo):
    assert api.whoami()["name"] == "someone"
    with pytest.raises(HfHubHTTPError):
        HfApi(token="hf_anotherTokenThatNobodyHas").whoami()
    with pytest.raises(RepositoryNotFoundError):
        HfApi(token=False).repo_info(repo)
    hub.users["hf_ofAnotherPersonAltogether"] = User("other")
    other = HfApi(token="hf_ofAnotherPersonAltogether")
    with pytest.raises(RepositoryNotFoundError):
        other.repo_info(repo)
    hub.repos["model", repo].private = False
    assert other.repo_info(repo).sha == hub.repos["model", repo].refs["main"]
    for write in (lambda: other.delete_file("a.txt", repo), lambda: other.create_repo(repo)):
        with pytest.raises(HfHubHTTPError, match="403"):
            write()
    other.upload_file(path_or_fileobj=b"x" * 10, path_in_repo="c.bin", repo_id=repo, create_pr=True)
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo(repo)
    assert api.create_repo(repo, exist_ok=True).repo_id == repo
    for missing, kind in [("none/none", RepositoryNotFoundError), (repo, RevisionNotFoundError)]:
        with pytest.raises(kind):
            api.repo_info(missing, revision="v9")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(repo, "none.txt", token=TOKEN)
