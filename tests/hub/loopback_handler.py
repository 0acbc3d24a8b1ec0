"""What the loopback Hub answers, request by request."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
import socket
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.hub.loopback import LARGE, WHEN, Blob, Commit, Fault, Repo, User


if TYPE_CHECKING:
    from tests.hub.loopback import LoopbackHub


class Answered(Exception):
    """Ends the handling of a request, with its answer."""

    def __init__(self, status: int, body=b"", **headers):
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers


def refused(status: int, code: str | None, message: str) -> Answered:
    return Answered(status, {"error": message}, X_Error_Code=code or "", X_Error_Message=message)


class Handler(BaseHTTPRequestHandler):
    server: LoopbackHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is two writes, of which the second would wait for 40 ms

    def log_message(self, *_):
        pass

    def serve(self):
        split = urlsplit(self.path)
        self.route, self.query = split.path, {k: v[-1] for k, v in parse_qs(split.query).items()}
        hub = self.server
        with hub.open:
            hub.calls.append((self.command, self.path))
            found = (f for f in hub.faults if f.times and f.method == self.command and re.search(f.pattern, self.path))
            fault = next(found, None)
            if fault is not None:
                fault.times -= 1
        try:
            self.body = self.read(fault)
            if fault is not None and fault.status:
                text = fault.body or f"the loopback Hub was told to answer {fault.status}"
                raise Answered(fault.status, {"error": text}, **fault.headers)
            with hub.open:
                self.dispatch()
            raise refused(404, None, f"the loopback Hub knows no {self.command} {self.route}")
        except Answered as answer:
            if fault is not None and fault.cut_after == -1:
                return self.hang_up()
            self.answer(answer)
        except ConnectionError:
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve

    def read(self, fault: Fault | None) -> bytes:
        left, data = int(self.headers.get("Content-Length") or 0), []
        limit = fault.cut_after if fault is not None and fault.cut_after is not None else -1
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                data.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        if limit == 0:
            self.hang_up()
        while left > 0:
            size = min(left, 65536) if limit < 0 else min(left, 65536, limit)
            block = self.rfile.read(size)
            if not block:
                raise ConnectionResetError
            data.append(block)
            left -= len(block)
            limit -= len(block) if limit > 0 else 0
            if limit == 0:
                self.hang_up()
            if fault is not None and fault.pause:
                time.sleep(fault.pause)
        return b"".join(data)

    def hang_up(self):
        """End the connection with a reset, as when a line is cut."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()
        raise ConnectionResetError

    def answer(self, answer: Answered):
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        headers = {"Content-Length": str(len(body)), "Content-Type": "application/json", **answer.headers}
        self.send_response(answer.status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # ---- who asks, and for what

    @property
    def user(self) -> User | None:
        given = self.headers.get("Authorization", "")
        if not given:
            return None
        user = self.server.users.get(given.removeprefix("Bearer "))
        if user is None:
            raise refused(401, None, "Invalid credentials in Authorization header")
        return user

    def logged_in(self) -> User:
        if self.user is None:
            raise refused(401, None, "Invalid username or password.")
        return self.user

    def may_write(self, namespace: str, user: User | None) -> bool:
        return user is not None and user.role == "write" and namespace in {user.name, *user.orgs}

    def repo(self, kind: str, repo_id: str, write: bool = False) -> Repo:
        user, repo = self.user, self.server.repos.get((kind, repo_id))
        namespace = repo_id.partition("/")[0]
        if repo is None or (repo.private and (user is None or namespace not in {user.name, *user.orgs})):
            raise refused(401 if user is None else 404, "RepoNotFound", "Repository not found")
        if write and not self.may_write(namespace, user):
            raise refused(401 if user is None else 403, None, "You don't have the required permissions")
        return repo

    def revision(self, repo: Repo, revision: str) -> Commit:
        commit = repo.find(unquote(revision))
        if commit is None:
            raise refused(404, "RevisionNotFound", f"Invalid rev id: {unquote(revision)}")
        return commit

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    def dispatch(self):
        name = r"(?P<repo>[^/]+/[^/]+)"
        api = rf"/api/(?P<kind>model|dataset|space)s/{name}"
        prefix = rf"/(?:(?P<kind>dataset|space)s/)?{name}"
        routes = [
            ("GET", "/api/whoami-v2", self.whoami),
            ("POST", "/api/repos/create", self.create),
            ("POST", "/api/validate-yaml", self.validate),
            ("GET", rf"{api}(?:/revision/(?P<rev>[^/]+))?", self.info),
            ("GET", rf"{api}/auth-check(?P<write>/write)?", self.auth_check),
            ("POST", rf"{api}/preupload/(?P<rev>[^/]+)", self.preupload),
            ("POST", rf"{prefix}\.git/info/lfs/objects/batch", self.batch),
            ("POST", rf"{prefix}\.git/lfs/(?P<sha>\w+)/(?P<what>verify|complete)", self.finish),
            ("PUT", rf"{prefix}\.git/lfs/(?P<sha>\w+)(?:/(?P<part>\d+))?", self.put),
            ("POST", rf"{api}/commit/(?P<rev>[^/]+)", self.commit),
            ("POST", rf"{api}/branch/(?P<rev>[^/]+)", self.branch),
            ("GET", rf"{api}/discussions", self.discussions),
            ("GET", rf"{api}/tree/(?P<rev>[^/]+)(?:/(?P<path>.+))?", self.tree),
            ("POST", rf"{api}/paths-info/(?P<rev>[^/]+)", self.paths_info),
            ("GET HEAD", rf"{prefix}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", self.resolve),
        ]
        for methods, pattern, handle in routes:
            if self.command in methods.split() and (found := re.fullmatch(pattern, self.route)):
                values = found.groupdict()
                if "kind" in values:
                    values["kind"] = values["kind"] or "model"
                handle(**values)

    # ---- users and repositories

    def whoami(self):
        user = self.logged_in()
        orgs = [{"name": name, "type": "org", "roleInOrg": "write"} for name in user.orgs]
        auth = {"type": "access_token", "accessToken": {"displayName": "test", "role": user.role}}
        raise Answered(200, {"type": "user", "name": user.name, "orgs": orgs, "auth": auth})

    def create(self):
        body, user = self.json(), self.logged_in()
        namespace, kind = body.get("organization") or user.name, body.get("type") or "model"
        repo_id = f"{namespace}/{body['name']}"
        url = f"{self.server.url}/{'' if kind == 'model' else kind + 's/'}{repo_id}"
        private = body.get("visibility") == "private" or bool(body.get("private"))
        if not self.may_write(namespace, user):
            raise refused(403, None, f"You don't have the rights to create a {kind} under the namespace {namespace}")
        if private and not user.may_make_private:
            raise refused(403, None, "Private repository storage limit reached")
        self.server.add(repo_id, repo_type=kind, private=private).sdk = body.get("sdk")
        raise Answered(200, {"url": url, "name": repo_id})

    def validate(self):
        self.server.cards.append(self.json())
        front = re.match(r"---\n(.*?)\n---", self.json()["content"], re.DOTALL)
        errors = []
        try:
            data = yaml.safe_load(front[1]) if front else {}
            base = data.get("base_model") if isinstance(data, dict) else None
            for name in base if isinstance(base, list) else [base] if base else []:
                if not re.fullmatch(r"[\w.-]+(?:/[\w.-]+)?", name):
                    errors.append({"message": f'"base_model" with value "{name}" is not valid'})
        except yaml.YAMLError as error:
            errors.append({"message": str(error)})
        raise Answered(400 if errors else 200, {"errors": errors, "warnings": []})

    def auth_check(self, kind, repo, write):
        self.repo(kind, repo, write=bool(write))
        raise Answered(200, {})

    def info(self, kind, repo, rev):
        found = self.repo(kind, repo)
        commit = self.revision(found, rev or "main")
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        body = {"id": repo, "modelId": repo, "private": found.private, "sha": commit.oid, "siblings": siblings}
        body |= {"tags": [], "downloads": 0, "likes": 0, "lastModified": WHEN, "createdAt": WHEN, "gated": False}
        raise Answered(200, body | {"disabled": False} | ({"sdk": found.sdk} if kind == "space" else {}))

    def branch(self, kind, repo, rev):
        found, rev = self.repo(kind, repo, write=True), unquote(rev)
        if rev in found.refs:
            raise refused(409, None, f"Reference already exists: {rev}")
        found.refs[rev] = self.revision(found, self.json().get("startingPoint", "main")).oid
        raise Answered(200, {})

    def discussions(self, kind, repo):
        titles = self.repo(kind, repo).titles
        common = {"author": {"name": "someone"}, "createdAt": WHEN, "status": "open", "isPullRequest": True}
        common["repo"] = {"name": repo, "type": kind}
        rows = [{"num": number, "title": title, **common} for number, title in titles.items()]
        raise Answered(200, {"discussions": rows, "count": len(rows), "start": 0})

    # ---- uploading

    def ignored(self, commit: Commit, path: str, given: str | None) -> bool:
        rules = given if given is not None else commit.files.get(".gitignore", Blob(b"")).data.decode()
        return any(fnmatch.fnmatch(path, line) for line in rules.split() if line)

    def preupload(self, kind, repo, rev):
        asks = self.query.get("create_pr") == "1"
        found = self.repo(kind, repo, write=not asks)
        commit, body, files = self.revision(found, rev), self.json(), []
        for file in body["files"]:
            path, blob = file["path"], commit.files.get(file["path"])
            large = file["size"] >= self.server.large_from or any(fnmatch.fnmatch(path, p) for p in LARGE)
            entry = {"path": path, "uploadMode": "lfs" if large else "regular"}
            entry["shouldIgnore"] = self.ignored(commit, path, body.get("gitIgnore"))
            files.append(entry | ({"oid": blob.sha256 if blob.large else blob.oid} if blob is not None else {}))
        raise Answered(200, {"files": files, "commitOid": commit.oid})

    def batch(self, kind, repo):
        body = self.json()
        found = self.repo(kind, repo, write="ref" in body)  # whoever may read may open a pull request
        place = f"{self.server.url}/{'' if kind == 'model' else kind + 's/'}{repo}.git/lfs"
        objects = []
        for item in body["objects"]:
            entry = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in found.store:
                parts = self.server.part_size
                upload = {"href": f"{place}/{item['oid']}", "header": {}}
                if parts and item["size"] > parts and "multipart" in body["transfers"]:
                    count = -(-item["size"] // parts)
                    upload["header"] = {str(n): f"{upload['href']}/{n}" for n in range(1, count + 1)}
                    upload["header"]["chunk_size"] = str(parts)
                    upload["href"] += "/complete"
                entry["actions"] = {"upload": upload, "verify": {"href": f"{place}/{item['oid']}/verify"}}
            objects.append(entry)
        raise Answered(200, {"transfer": "basic", "objects": objects})

    def put(self, kind, repo, sha, part):
        # As with a signed address of a storage, no token is asked for; nor should one be sent.
        assert "Authorization" not in self.headers, "the token went to the storage"
        found = self.server.repos[kind, repo]
        if part is not None:
            self.server.parts[sha, int(part)] = self.body
            raise Answered(200, ETag=f'"{hashlib.md5(self.body).hexdigest()}"')
        self.keep(found, sha, self.body)
        raise Answered(200)

    def keep(self, repo: Repo, sha: str, data: bytes):
        if hashlib.sha256(data).hexdigest() != sha:
            raise refused(400, None, "The content does not have the oid that was announced")
        repo.store[sha] = data
        self.server.stored[sha] += 1

    def finish(self, kind, repo, sha, what):
        found = self.server.repos[kind, repo]
        if what == "complete":
            parts = sorted(self.json()["parts"], key=lambda part: part["partNumber"])
            self.keep(found, sha, b"".join(self.server.parts.pop((sha, part["partNumber"])) for part in parts))
        elif sha not in found.store or len(found.store[sha]) != self.json()["size"]:
            raise refused(404, None, "no such object")
        raise Answered(200, {})

    def commit(self, kind, repo, rev):
        asks, rev = self.query.get("create_pr") == "1", unquote(rev)
        found = self.repo(kind, repo, write=not asks)
        self.logged_in()
        parent = self.revision(found, rev)
        header, *operations = [json.loads(line) for line in self.body.splitlines()]
        if header["value"].get("parentCommit") not in (None, parent.oid):
            raise refused(412, None, "A commit has happened since. Please refresh and try again.")
        files = dict(parent.files)  # published at the end, or not at all
        for operation in operations:
            value, key = operation["value"], operation["key"]
            path = value["path"]
            if key == "file":
                files[path] = Blob(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                if value["oid"] not in found.store:
                    raise refused(400, None, f"LFS pointer pointed to a file that does not exist: {path}")
                files[path] = Blob(found.store[value["oid"]], large=True)
            elif key == "deletedFile":
                del files[path]
        title, number = header["value"]["summary"], len(found.titles) + 1
        commit = found.commit(f"refs/pr/{number}" if asks else rev, title, files, parent.oid)
        place = f"{self.server.url}/{'' if kind == 'model' else kind + 's/'}{repo}"
        body = {"commitUrl": f"{place}/commit/{commit.oid}", "commitOid": commit.oid, "success": True}
        if asks:
            found.titles[number] = title
            body["pullRequestUrl"] = f"{place}/discussions/{number}"
        raise Answered(200, body)

    # ---- loading

    def entry(self, path: str, blob: Blob) -> dict:
        entry = {"type": "file", "path": path, "size": len(blob.data), "oid": blob.oid}
        return entry | (
            {"lfs": {"oid": blob.sha256, "size": len(blob.data), "pointerSize": 130}} if blob.large else {}
        )

    def listed(self, commit: Commit, folder: str, recursive: bool) -> list[dict]:
        start, folders, files = f"{folder}/" if folder else "", {}, []
        for path, blob in sorted(commit.files.items()):
            if path.startswith(start):
                parts = path.removeprefix(start).split("/")
                for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
                    name = start + "/".join(parts[:depth])
                    folders[name] = {"type": "directory", "path": name, "size": 0, "oid": commit.oid}
                if recursive or len(parts) == 1:
                    files.append(self.entry(path, blob))
        return [*folders.values(), *files]

    def tree(self, kind, repo, rev, path):
        commit, folder = self.revision(self.repo(kind, repo), rev), unquote(path or "")
        found = self.listed(commit, folder, self.query.get("recursive", "").lower() in ("1", "true"))
        if folder and not found:
            raise refused(404, "EntryNotFound", f"{folder} does not exist")
        raise Answered(200, found)

    def paths_info(self, kind, repo, rev):
        commit = self.revision(self.repo(kind, repo), rev)
        typed = self.headers.get("Content-Type", "")
        sent = self.json() if "json" in typed else parse_qs(self.body.decode())
        everything = {entry["path"]: entry for entry in self.listed(commit, "", True)}
        raise Answered(200, [everything[path] for path in sent["paths"] if path in everything])

    def resolve(self, kind, repo, rev, path):
        found, path = self.repo(kind, repo), unquote(path)
        commit = self.revision(found, rev)
        if path not in commit.files:
            raise refused(404, "EntryNotFound", f"{path} does not exist")
        blob = commit.files[path]
        data, etag = blob.data, f'"{blob.sha256 if blob.large else blob.oid}"'
        headers = {"X_Repo_Commit": commit.oid, "ETag": etag, "Accept_Ranges": "bytes"}
        headers |= {"Content_Type": "application/octet-stream"}
        if blob.large:
            headers |= {"X_Linked_Size": str(len(data)), "X_Linked_Etag": etag}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
            if start >= len(data):
                raise Answered(416, b"", Content_Range=f"bytes */{len(data)}")
            headers["Content_Range"] = f"bytes {start}-{end}/{len(data)}"
            raise Answered(206, data[start : end + 1], **headers)
        raise Answered(200, data, **headers)
