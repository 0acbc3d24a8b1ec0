"""The one way to the Hub: large files first, then a single commit; a reader sees all of a push or nothing.

`upload_folder` of `huggingface_hub` commits in batches, so that a push that is cut leaves half of itself to readers. Here the
large files are stored first (`preupload_lfs_files`), where nobody sees them, and those that the Hub has are not sent again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hf_factuality.errors import HubError
from hf_factuality.io.secrets import find_secrets, redact, search_file


if TYPE_CHECKING:
    from huggingface_hub import HfApi

PATIENCE = 300.0
"""Seconds that a push waits in all between attempts while the Hub cannot be reached."""
PATIENCE_AT_START = 10.0
"""The same before anything was done: who mistyped an address should not wait for minutes."""
_AGAIN = {408, 412, 425, 429}  # 412: somebody else's commit came in between

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Published:
    """What a push did: to which repository, in which commit (the last one if nothing had changed), and what it removed."""

    repo_id: str
    commit_url: str
    oid: str
    pull_request_url: str | None = None
    deleted: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Of the pull request, or else of the commit."""
        return self.pull_request_url or self.commit_url


def prepare_repo(
    repo_id: str,
    *,
    repo_type: str = "model",
    private: bool | None = None,
    new_private: bool | None = None,
    pull_request: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
) -> str:
    """Make a repository if it is not there, and check that it can be written to: before the work, not after it.

    `private` is what it has to be (one that exists and is not is refused), `new_private` what a new one is if that is
    `None`. Returns its full id; without a namespace, it is in that of the token's owner.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import RepositoryNotFoundError
    from huggingface_hub.utils import validate_repo_id

    if pull_request and revision not in (None, "main"):
        raise HubError(f"a pull request is made against main; leave out the revision {revision!r}")
    api = HfApi(token=token)

    def prepare() -> str:
        validate_repo_id(repo_id)
        full = repo_id if "/" in repo_id else f"{api.whoami()['name']}/{repo_id}"
        try:
            info = api.repo_info(full, repo_type=repo_type)
        except RepositoryNotFoundError:
            if pull_request:
                raise
            wanted = new_private if private is None else private
            return _create(api, full, repo_type, wanted)
        if private is not None and bool(info.private) != private:
            now = "private" if info.private else "public"
            flag = f"`{private=}`"
            raise HubError(f"{full} exists and is {now}; change that in its settings, or leave out {flag}")
        if not pull_request and "write" in signature(api.auth_check).parameters:
            api.auth_check(full, repo_type=repo_type, write=True)
        return full

    with hub_errors(f"the {repo_type} {repo_id!r} cannot be written on the Hub", token):
        if token is False or not (isinstance(token, str) or get_token()):  # without asking a network that may be slow
            raise HubError("nobody is logged in; run `hf auth login`, or set HF_TOKEN")
        return _patiently(prepare, PATIENCE_AT_START)


def _create(api: HfApi, repo_id: str, repo_type: str, private: bool | None) -> str:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        sdk = {"space_sdk": "gradio"} if repo_type == "space" else {}
        return api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, **sdk).repo_id
    except HfHubHTTPError as error:
        if _status(error) not in (402, 403):
            raise
        me, namespace = api.whoami(), repo_id.partition("/")[0]
        if namespace not in {me["name"], *(org["name"] for org in me.get("orgs", ()))}:
            hint = f"you are {me['name']!r}, and {namespace!r} is no organisation of yours"
        elif (me.get("auth", {}).get("accessToken") or {}).get("role") == "read":
            hint = "the token only reads; make one that writes, https://huggingface.co/settings/tokens"
        elif private:
            hint = "if only public ones are allowed, pass `private=False`"
        else:
            hint = "give the token write access, https://huggingface.co/settings/tokens"
        raise HubError(f"the repository {repo_id!r} could not be made ({_said(error)}): {hint}") from None


def publish(
    files: Mapping[str, str | Path | bytes],
    repo_id: str,
    *,
    commit_message: str,
    repo_type: str = "model",
    private: bool | None = None,
    new_private: bool | None = None,
    revision: str | None = None,
    pull_request: bool = False,
    keeps: Collection[str] = (),
    replaces: Callable[[frozenset[str]], Iterable[str]] | None = None,
    only_private: bool = False,
    allow_secrets: Collection[str] = (),
    token: str | bool | None = None,
    patience: float | None = None,
) -> Published:
    """Upload files (path in the repository -> file, or its contents) in one commit; [`prepare_repo`] is called first.

    A connection that is cut and an overloaded Hub are waited for, `patience` seconds in all. If the process is killed,
    running it again sends only what has not arrived. After an error, nothing of the push is visible.

    Files of `keeps` are not written where the repository has them; `replaces` leads from the names of the repository's files
    to those that the commit removes; with `only_private`, nothing is uploaded to a public repository. `allow_secrets` are
    places that [`refuse_secrets`] lets through.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    for name, content in files.items():
        refuse_secrets(name, content, allow_secrets)
    repo_id = prepare_repo(
        repo_id, repo_type=repo_type, private=private, new_private=new_private, pull_request=pull_request,
        revision=revision, token=token,
    )  # fmt: skip
    api = HfApi(token=token)
    where: dict[str, Any] = {"repo_id": repo_id, "repo_type": repo_type}
    hashed: dict[str, Any] = {}
    before: list[set[int]] = []

    def attempt() -> Published:
        if pull_request:
            found = {pull.num: pull for pull in api.get_repo_discussions(**where, discussion_type="pull_request")}
            before.append(set(found))
            for number in sorted(set(found) - before[0]):
                if found[number].title == commit_message:  # the answer to the attempt before was lost
                    oid = api.repo_info(**where, revision=f"refs/pr/{number}").sha
                    return Published(repo_id, f"{found[number].url}/commits/{oid}", oid, found[number].url)
        elif revision not in (None, "main") and not revision.startswith("refs/"):
            api.create_branch(**where, branch=revision, exist_ok=True)
        info = api.repo_info(**where, revision=revision)
        if only_private and not info.private:
            raise HubError(f"{repo_id} is public; the state of a run goes to private repositories only")
        names = frozenset(file.rfilename for file in info.siblings or ())
        kept = names.intersection(keeps)
        additions = []
        for name, content in files.items():
            if name not in kept:
                addition = CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
                addition.upload_info = hashed.setdefault(name, addition.upload_info)  # its hash is taken once
                additions.append(addition)
        deleted = sorted(set(replaces(names) if replaces is not None else ()) & names - set(files))
        _check_card(api, files, repo_type)
        # A checkpoint beside its model holds the same files: their second copies are found to be there.
        first = {(Path(addition.path_in_repo).name, addition.upload_info.size): addition for addition in additions}
        for some in (list(first.values()), additions):
            api.preupload_lfs_files(
                **where, additions=some, revision=revision, create_pr=pull_request, free_memory=False
            )
        ignored = [addition.path_in_repo for addition in additions if getattr(addition, "_should_ignore", False)]
        if ignored:
            raise HubError(f"the .gitignore of {repo_id} leaves out {', '.join(ignored)}; take that line out of it")
        commit = api.create_commit(
            **where,
            operations=[*additions, *(CommitOperationDelete(path_in_repo=name) for name in deleted)],
            commit_message=commit_message,
            revision=revision,
            create_pr=pull_request,
            parent_commit=info.sha,
        )
        return Published(repo_id, str(commit.commit_url), commit.oid, commit.pr_url, tuple(deleted))

    with hub_errors(f"{repo_id} could not be pushed to", token):
        return _patiently(attempt, PATIENCE if patience is None else patience)


def refuse_secrets(name: str, file: str | Path | bytes, allowed: Collection[str] = ()) -> list[str]:
    """Refuse a file, or its contents, whose text or name holds an access token, a private key or a password, which is not shown.

    So is one of which a part could not be searched. `allowed` are places to let through, as errors name them: `FILE:LINE`,
    or the file, and in it the member or column, where there are no lines. Returns those of `allowed` that were there.
    """
    seen = []
    named = [replace(one, line=None) for one in find_secrets(name.replace("/", "\n"))]
    for one in [*named, *search_file(file)]:
        text = f"{name}/{one.place}" if one.place else name
        for part in find_secrets(text.replace("/", "\n")):  # a name may be the secret
            text = text.replace(part.text, "***")
        at = text if one.line is None else f"{text}:{one.line}"
        if at in allowed:
            seen.append(at)
            continue
        let = f"to let it through, pass `allow_secrets` {at!r}"
        if one.problem:
            raise HubError(
                f"{text} could not be searched for secrets ({redact(one.problem)}); leave it out or unpack it; {let}"
            )
        line = "" if one.line is None else f", line {one.line},"
        raise HubError(
            f"{text}{line} holds what looks like a secret ({one.kind.replace('-', ' ')}); take it out, and revoke it; {let}"
        )
    return seen


def _check_card(api: HfApi, files: Mapping[str, str | Path | bytes], repo_type: str) -> None:
    """Let the Hub check the card before gigabytes are sent; `create_commit` asks again, at the end."""
    card, check = files.get("README.md"), getattr(api, "_validate_yaml", None)
    if card is not None and check is not None:
        text = card if isinstance(card, bytes) else Path(card).read_bytes()
        check(text.decode("utf-8"), repo_type=repo_type)


def _patiently(call: Callable[[], Result], patience: float) -> Result:
    """Result of `call`, which is tried again after errors that pass, until it has been waited for `patience` seconds."""
    waited, wait = 0.0, 1.0
    while True:
        try:
            return call()
        except Exception as error:
            if not _passes(error):
                raise
            told = getattr(_response(error), "headers", {}).get("Retry-After", "")
            pause = max(wait, float(told) if told.isdigit() else 0.0)
            if waited + pause > patience:
                text = f"the Hub cannot be reached ({_said(error)}), also after waiting {waited:.0f} s"
                raise HubError(f"{text}; files that have arrived stay there: run again to go on") from None
            logger.warning("the Hub does not answer (%s); trying again in %.0f s", redact(_said(error)), pause)
            time.sleep(pause)
            waited, wait = waited + pause, min(wait * 2, 30.0)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _response(error: BaseException) -> Any:
    """The answer over HTTP that an error comes from."""
    found = (getattr(cause, "response", None) for cause in _causes(error))
    return next((response for response in found if response is not None), None)


def _status(error: BaseException) -> int | None:
    return getattr(_response(error), "status_code", None)


def _passes(error: Exception) -> bool:
    """Whether trying again may help."""
    status = _status(error)
    if status is not None:
        return status in _AGAIN or status >= 500
    for cause in _causes(error):
        kinds = {kind.__name__ for kind in type(cause).__mro__}  # httpx or httpx2, as huggingface_hub has it
        if "TransportError" in kinds and not kinds & {"UnsupportedProtocol", "LocalProtocolError"}:
            return True
        if isinstance(cause, (ConnectionError, TimeoutError)) and "OfflineModeIsEnabled" not in kinds:
            return True
        if "JSONDecodeError" in kinds:  # a page in HTML, of something between here and the Hub
            return True
    return False


def _said(error: BaseException) -> str:
    """The error in one line: what the server said, if it said something."""
    causes, status = list(_causes(error)), _status(error)
    text = next((said for cause in causes if (said := getattr(cause, "server_message", None))), "")
    text = text or str(causes[-1] if status is None else error).strip()
    line = next(iter(text.splitlines()), "") or type(causes[-1]).__name__
    return line if status is None or str(status) in line else f"{status}, {line}"


@contextmanager
def hub_errors(what: str, token: str | bool | None = None) -> Iterator[None]:
    """Errors of the Hub, the network and the account as a `HubError` with the fix, without a token."""
    try:
        yield
    except Exception as error:
        # Of the Hub are OSError, of names ValueError, of uploads RuntimeError; anything else is a mistake of ours, unless
        # an answer was other than the client expects.
        known = isinstance(error, (OSError, ValueError, RuntimeError)) or _is_of_an_answer(error)
        if not known and not type(error).__module__.startswith("httpx"):
            raise
        text = str(error) if isinstance(error, HubError) else _explain(error)
        from huggingface_hub import get_token

        for secret in (token, get_token()):
            if isinstance(secret, str) and secret:
                text = text.replace(secret, "***")
        raise HubError(f"{what}: {redact(text)}") from None


@contextmanager
def naming_model(name: object) -> Iterator[None]:
    """Around what loads a model: errors say in one line which one, as those of the Hub's clients do not."""
    try:
        yield
    except (OSError, ValueError) as error:
        names = {type(cause).__name__ for cause in _causes(error)}
        unreachable = names & {"LocalEntryNotFoundError", "OfflineModeIsEnabled"}
        if "GatedRepoError" in names:
            text = "is gated: ask for access on its page, and log in with `hf auth login`"
        elif unreachable or names & {"RepositoryNotFoundError", "RevisionNotFoundError", "HFValidationError"}:
            text = "was not found locally or on the Hub"
            text += ", which was not asked: HF_HUB_OFFLINE is set, or no connection" if unreachable else ""
            adapter = Path(str(name)) / "adapter_config.json"
            if adapter.is_file():  # itself it is here
                name = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path") or name
        else:
            text = f"cannot be loaded: {redact(' '.join(str(error).split()))[:300]}"
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"the model {str(name)!r} {text}") from error


def _is_of_an_answer(error: Exception) -> bool:
    """Whether the client, or we, looked in vain for something in an answer of the Hub."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    kinds = KeyError if place == __name__ else (LookupError, TypeError, AttributeError)
    return isinstance(error, kinds) and (place == __name__ or place.partition(".")[0] == "huggingface_hub")


def _explain(error: Exception) -> str:
    names = {type(cause).__name__ for cause in _causes(error)}
    if _is_of_an_answer(error):
        what = f"the Hub answered with something else than it should ({type(error).__name__}: {error})"
        return f"{what}; look whether HF_ENDPOINT is right and whether the commit is there, and run again"
    if "OfflineModeIsEnabled" in names:
        return "HF_HUB_OFFLINE is set; unset it"
    status = _status(error)
    if status == 401 or "LocalTokenNotFoundError" in names:
        return "nobody is logged in, or the token is not valid any more; run `hf auth login`, or set HF_TOKEN"
    if status in (402, 403):
        fix = "give it write access (https://huggingface.co/settings/tokens), or open a pull request"
        return f"the token may not do that ({_said(error)}); {fix}"
    if status == 404:
        return f"there is no such repository or revision, or this token does not see it ({_said(error)})"
    return _said(error)
