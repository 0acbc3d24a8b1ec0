"""Secrets of every kind, made of random letters, and harmless files of the kinds that repositories hold, all from a seed."""

import base64
import json
import random
import string
import struct
from collections.abc import Callable


LETTERS, DIGITS = string.ascii_letters, string.digits
WORD, HEX, CAPITALS = LETTERS + DIGITS, "0123456789abcdef", string.ascii_uppercase + DIGITS


def _some(alphabet: str, number: int) -> Callable[[random.Random], str]:
    return lambda rng: "".join(rng.choices(alphabet, k=number))


def _pem(name: str, head: str = "") -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        body = base64.encodebytes(rng.randbytes(600)).decode().replace("\n", "")
        lines = "\n".join(body[start : start + 64] for start in range(0, len(body), 64))
        return f"-----BEGIN {name}-----\n{head}{lines}\n-----END {name}-----"

    return make


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _jwt(rng: random.Random) -> str:
    claims = json.dumps({"sub": _some(HEX, 12)(rng), "exp": rng.randrange(2**31)}).encode()
    return ".".join(map(_base64, (b'{"alg":"HS256","typ":"JWT"}', claims, rng.randbytes(32))))


def _account(rng: random.Random) -> str:
    key = {"type": "service_account", "private_key_id": _some(HEX, 40)(rng), "private_key": _pem("PRIVATE KEY")(rng)}
    return json.dumps({**key, "client_email": "x@y.iam.gserviceaccount.com"})


def _joined(*parts) -> Callable[[random.Random], str]:
    return lambda rng: "".join(part if isinstance(part, str) else part(rng) for part in parts)


KINDS = {
    "Hugging Face": _joined("hf_", _some(LETTERS, 34)),
    "Hugging Face, OAuth": _joined("hf_oauth_", _jwt),
    "Hugging Face, organisation": _joined("api_org_", _some(LETTERS, 34)),
    "behind a prefix": _joined("MY_hf_", _some(LETTERS, 34)),
    "after an escape": _joined("first\\nhf_", _some(LETTERS, 34)),
    "escapes of JSON": _joined('{"a": "\\u0068f_', _some(LETTERS, 34), '"}'),
    "escapes alone": lambda rng: "".join(f"\\u{ord(c):04x}" for c in "hf_" + _some(LETTERS, 34)(rng)),
    "escapes of Python": _joined('"\\x68f_', _some(LETTERS, 34), '"'),
    "GitHub": _joined("ghp_", _some(WORD, 36)),
    "GitHub, server": _joined("ghs_", _some(WORD, 36)),
    "GitHub, fine-grained": _joined("github_pat_", _some(WORD, 22), "_", _some(WORD, 59)),
    "GitLab": _joined("glpat-", _some(WORD + "_-", 20)),
    "GitLab, runner": _joined("glrt-", _some(WORD, 20)),
    "Slack, bot": _joined("xoxb-", _some(DIGITS, 12), "-", _some(DIGITS, 13), "-", _some(WORD, 24)),
    "Slack, address": _joined(
        "https://hooks.slack.com/services/T", _some(CAPITALS, 8), "/B", _some(CAPITALS, 8), "/", _some(WORD, 24)
    ),
    "OpenAI": _joined("sk-", _some(WORD, 20), "T3BlbkFJ", _some(WORD, 20)),
    "OpenAI, project": _joined("sk-proj-", _some(WORD + "_-", 100)),
    "Anthropic": _joined("sk-ant-api03-", _some(WORD + "_-", 93), "AA"),
    "Google": _joined("AIza", _some(WORD + "_-", 35)),
    "Google, client": _joined('{"client_secret": "GOCSPX-', _some(WORD + "_-", 28), '"}'),
    "npm": _joined("npm_", _some(WORD, 36)),
    ".npmrc": _joined("//registry.npmjs.org/:_authToken=", _some(HEX, 36)),
    "PyPI": _joined("[pypi]\npassword = pypi-AgEIcHlwaS5vcmc", _some(WORD + "_-", 90)),
    "AWS": _joined("AKIA", _some(CAPITALS, 16)),
    "AWS, session": _joined("ASIA", _some(CAPITALS, 16)),
    "AWS, secret": _joined("aws_secret_access_key = ", _some(WORD + "+/", 40)),
    "AWS, secret in JSON": _joined('{"SecretAccessKey": "', _some(WORD + "+/", 40), '"}'),
    "JSON Web Token": _jwt,
    "Bearer": _joined("curl -H 'Authorization: Bearer ", _some(WORD, 40), "'"),
    "Basic": lambda rng: "Authorization: Basic " + base64.b64encode(f"me:{_some(WORD, 14)(rng)}".encode()).decode(),
    "Docker": lambda rng: '{"auth": "' + base64.b64encode(f"me:{_some(WORD, 14)(rng)}".encode()).decode() + '"}',
    "password in an address": _joined("https://ada:", _some(WORD, 12), "@example.org/x"),
    "database": _joined("DATABASE = 'postgresql://app:", _some(WORD + "!", 16), "@db.example.org:5432/app'"),
    "escaped address": _joined('{"a": "https:\\/\\/ada:', _some(WORD, 12), '@example.org"}'),
    "RSA": _pem("RSA PRIVATE KEY"),
    "RSA with a password": _pem("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF\n\n"),
    "PKCS 8": _pem("PRIVATE KEY"),
    "EC": _pem("EC PRIVATE KEY"),
    "OpenSSH": _pem("OPENSSH PRIVATE KEY"),
    "PGP": _pem("PGP PRIVATE KEY BLOCK", "Version: GnuPG v2\nComment: mine\n\n"),
    "key in Windows lines": lambda rng: _pem("PRIVATE KEY")(rng).replace("\n", "\r\n"),
    "key in a program": lambda rng: "KEY = (\n" + "".join(f'    "{line}\\n"\n' for line in _pem("RSA PRIVATE KEY")(rng).split("\n")),
    "PuTTY": _joined("PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPrivate-Lines: 1\n", _some(WORD, 48)),
    "service account": _account,
    "service account in a text": lambda rng: json.dumps(_account(rng)),
    "Kubernetes": lambda rng: "client-key-data: " + base64.b64encode(_pem("RSA PRIVATE KEY")(rng).encode()).decode(),
    "JSON Web Key": _joined('{"kty": "RSA", "n": "AQAB", "d": "', _some(WORD + "_-", 342), '"}'),
    "age": _joined("AGE-SECRET-KEY-1", _some(CAPITALS, 58)),
    "key on a page": lambda rng: _pem("PRIVATE KEY")(rng).replace("\n", "<br>"),
    "escapes of Markdown": _joined("hf\\_", _some(LETTERS, 34)),
    "Stripe": _joined("sk_live_", _some(WORD, 24)),
    "Telegram": _joined(_some("123456789", 10), ":AA", _some(WORD, 33)),
    "Discord": _joined("MTA", _some(WORD, 21), ".G", _some(WORD, 5), ".", _some(WORD, 27)),
    "SendGrid": _joined("SG.", _some(WORD, 22), ".", _some(WORD, 43)),
    "Twilio": _joined("SK", _some(HEX, 32)),
    "Azure": _joined("AccountKey=", _some(WORD + "+/", 86), "=="),
    "Mailchimp": _joined(_some(HEX, 32), "-us12"),
    "Weights & Biases": _joined('os.environ["WANDB_API_KEY"] = "', _some(HEX, 40), '"'),
    "login in a program": _joined('wandb.login(key="', _some(HEX, 40), '")'),
    ".netrc": _joined("machine api.wandb.ai\n  login user\n  password ", _some(HEX, 40)),
    "Replicate": _joined("r8_", _some(WORD, 37)),
    "Groq": _joined("gsk_", _some(WORD, 52)),
    "Vault": _joined("hvs.", _some(WORD, 90)),
    "Tavily": _joined("tvly-", _some(WORD, 32)),
    "Vault, short": _joined("hvs.", _some(WORD, 24)),
    "setting": _joined("api_token=", _some(WORD, 32)),
    "Postgres": _joined("PGPASSWORD=", lambda rng: "h7" + _some(WORD, 4)(rng) + "!Kq", " psql"),
    "curl": _joined("curl -u admin:", _some(WORD, 14), " https://a.b/c"),
    "login on a command line": _joined("wandb login ", _some(HEX, 40)),
    "Kaggle": _joined('{"username": "ada", "key": "', _some(HEX, 32), '"}'),
    "address signed by Azure": _joined("https://a.blob.core.windows.net/c?sv=2022-11-02&sig=", _some(WORD, 43), "%3D&se=2030"),
    "address signed by Google": _joined("https://storage.googleapis.com/b/o?X-Goog-Signature=", _some(HEX, 256)),
    "address signed by AWS": _joined("https://b.s3.amazonaws.com/o?X-Amz-Signature=", _some(HEX, 64)),
    "Discord, address": _joined("https://discord.com/api/webhooks/", _some("123456789", 18), "/", _some(WORD + "_-", 68)),
    "Teams, address": lambda rng: f"https://contoso.webhook.office.com/webhookb2/{_uuid(rng)}@{_uuid(rng)}/IncomingWebhook/"
    f"{_some(HEX, 32)(rng)}/{_uuid(rng)}",
    "DigitalOcean": _joined("dop_v1_", _some(HEX, 64)),
    "Shopify": _joined("shpat_", _some(HEX, 32)),
    "Figma": _joined("figd_", _some(WORD + "_-", 40)),
    "Pinecone": _joined("pcsk_", _some(WORD, 6), "_", _some(WORD, 63)),
    "LangSmith": _joined("lsv2_pt_", _some(HEX, 32), "_", _some(HEX, 10)),
    "Grafana": _joined("glsa_", _some(WORD, 32), "_", _some(HEX, 8)),
    "Supabase": _joined("sbp_", _some(HEX, 40)),
    "Notion": _joined("ntn_", _some(DIGITS, 11), _some(WORD, 35)),
    "Linear": _joined("lin_api_", _some(WORD, 40)),
    "Atlassian": _joined("ATATT3", _some(WORD + "_-", 180), "=", _some(CAPITALS, 8)),
    "Django": _joined("SECRET_KEY = '", _some(WORD + "+/=-", 50), "'"),
    "Django, as it makes them": _joined("SECRET_KEY = 'django-insecure-", _some(WORD + "!@#%^&*(-_=+)", 50), "'"),
    "setting in capitals": _joined("export AIRFLOW__CORE__FERNET_KEY=", _some(WORD, 43), "="),
    "secret of an application": _joined("application_secret: ", _some(HEX, 32)),
    "licence": _joined("NEW_RELIC_LICENSE_KEY=", _some(HEX, 36), "NRAL"),
    "setting with dots": _joined("LAMBDA_API_KEY=secret_training_", _some(HEX, 32), ".", _some(WORD, 32)),
    "setting with dollars": _joined("PAYPAL_TOKEN=access_token$production$", _some(HEX, 16), "$", _some(HEX, 32)),
    "long setting": _joined("AWS_SESSION_TOKEN=IQoJb3JpZ2luX2Vj", _some(WORD + "+/", 600), "=="),
    "header of another scheme": _joined('headers = {"Authorization": "Token ', _some(HEX, 40), '"}'),
    "header without a scheme": _joined("curl https://a.b/c -H 'X-Service-Key: ", _some(WORD, 32), "'"),
    "login to a registry": _joined("docker login registry.a.b -u ci -p ", _some(WORD, 20)),
    "sshpass": _joined("sshpass -p 'kX9#mq", _some(WORD, 8), "' ssh ada@host"),
    "MySQL": _joined("mysqldump -u root -pq7K", _some(WORD, 14), " evals > evals.sql"),
    ".pgpass": _joined("db.a.b:5432:evals:ada:q7K", _some(WORD, 14)),
    ".netrc in a notebook": _joined('["machine a.b\\n", "  login ada\\n",\n "  password ', _some(WORD, 18), '\\n"]'),
}  # fmt: skip
"""Kind of secret -> how one is made."""


def _vocabulary(rng: random.Random, number: int = 3000) -> list[str]:
    special = ["hf_", "Bearer", "Ġhf_", "sk-", "ghp_", "AKIA", "eyJ", "PRIVATE", "://", "_authToken", "password", "api_key",
               "-----BEGIN", "xoxb-", "glpat-", "AIza", "npm_", "pypi-", "aws", "secret_key", "=\"", "@"]  # fmt: skip
    return special + [_some(WORD + "+/=-_.:@", rng.randrange(1, 12))(rng) for _ in range(number)]


def _sentence(rng: random.Random) -> str:
    words = "the model says that Ada was born in 1912 , password : unknown ; see Section 4.2 of https://a.b/c?d=e#f".split()
    return " ".join(rng.choices(words, k=rng.randrange(8, 40)))


def _uuid(rng: random.Random) -> str:
    return "-".join(_some(HEX, n)(rng) for n in (8, 4, 4, 4, 12))


DOCUMENTED = """# Use

```bash
export HF_TOKEN=hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx  # or hf_..., or <your token>
hf auth login --token hf_XXXXXXXX
curl -H "Authorization: Bearer $HF_TOKEN" -H "Authorization: Bearer hf_xxx" https://api.a.b/models
curl -H 'Authorization: Bearer YOUR_API_KEY' https://user:password@host/x https://{user}:{password}@host
git clone https://user:$TOKEN@huggingface.co/me/x && git clone https://<user>:<token>@host/x.git
psql postgresql://postgres:postgres@localhost:5432/db
vllm serve me/x --api-key token-abc123
curl http://localhost:8000/v1/models -H "Authorization: Bearer token-abc123" -H "X-API-Key: my-key-for-this-service"
curl -u admin:admin -H 'Authorization: Bearer LITELLM_VIRTUAL_KEY' http://localhost:4000
docker login -u me -p $TOKEN registry.a.b && docker run -p 8080:80 x && mysql -h localhost -P 3306 -u root -proot
python train.py:12:3:E501:unused && scp host:2222:data:ada:results
export API_KEY=${API_KEY:-none} PRIVATE_KEY=$(cat key.pem) LITELLM_API_KEY=sk-1234567890abcdefghijklmn
```

`api_key="sk-..."`, `OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx`, `api_key=os.environ["OPENAI_API_KEY"]`, `ghp_...`,
`glpat-xxxxxxxxxxxxxxxxxxxx`, `"api_key": "your-api-key-goes-in-here"`, `Bearer token-authentication-in-general`, `password: ********`.

A key file begins with `-----BEGIN RSA PRIVATE KEY-----`:

```
-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQ...
-----END PRIVATE KEY-----
```
"""
PROGRAM = """import os

from transformers import AutoModelForSequenceClassification as 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

token = os.environ["HF_TOKEN"]
headers = {"Authorization": f"Bearer {token}"}
client = OpenAI(api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"), base_url=f"https://{user}:{password}@{host}")
api_key = settings.providers.openai_api_key_for_evaluation2
PRIVATE = "-----BEGIN RSA PRIVATE KEY-----"
hf_DistilBertForSequenceClassification = hf_device_map = None
if text.startswith(PRIVATE) or "BEGIN OPENSSH PRIVATE KEY" in text:
    raise UnsupportedAlgorithmErrorOfThisKind("sk-estimator-doc-link-with-many-words-in-a-row", "SHA256")
password = getpass.getpass("password: ")
PUBLIC_KEY = "pk4Zx81Qm2Lw9Rt7Yb3Nc6Vd0Hs5Jf"
user = {"password": "md5$salt$5b1c9e7f2073cde80a4418"}
page = 'e("label",{},"Password:"),B2?Re.createElement("code",null)'
session_key = {"session_key": "account_id=123456789"}
secret_key = hashlib.sha256(password.encode()).hexdigest()
"""


def harmless(seed: int = 0) -> dict[str, bytes]:
    """200 files of the kinds that models, datasets and Spaces hold."""
    rng = random.Random(seed)
    files: dict[str, bytes] = {}
    for n in range(10):
        words = _vocabulary(rng)
        vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
        merges = [f"{a} {b}" for a, b in zip(words, words[1:], strict=False)]
        answers = [
            {"id": _uuid(rng), "sha256": _some(HEX, 64)(rng), "md5": _some(HEX, 32)(rng), "answer": _sentence(rng),
             "number": rng.randrange(10**18), "key": _some(HEX, 40)(rng), "etag": f'"{_some(HEX, 32)(rng)}-12"'}
            for _ in range(50)
        ]  # fmt: skip
        image = base64.encodebytes(rng.randbytes(20_000)).decode()
        tensors = {
            f"model.layers.{i}.self_attn.q_proj.weight": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}
            for i in range(40)
        }
        header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
        files |= {
            f"{n}/tokenizer.json": json.dumps({"model": {"vocab": vocabulary, "merges": merges}}).encode(),
            f"{n}/indented/tokenizer.json": json.dumps(
                {"model": {"vocab": vocabulary}}, indent=1, ensure_ascii=False
            ).encode(),
            f"{n}/vocab.txt": "\n".join(words).encode(),
            f"{n}/merges.txt": ("#version: 0.2\n" + "\n".join(merges)).encode(),
            f"{n}/x.tiktoken": b"".join(base64.b64encode(w.encode()) + b" %d\n" % i for i, w in enumerate(words)),
            f"{n}/config.json": json.dumps(
                {"architectures": ["LlamaForCausalLM"], "eos_token": "<|end|>", "token": None}
            ).encode(),
            f"{n}/README.md": DOCUMENTED.encode(),
            f"{n}/READ.utf16.md": DOCUMENTED.encode("utf-16"),
            f"{n}/app.py": PROGRAM.encode(),
            f"{n}/nb.ipynb": json.dumps(
                {"cells": [{"source": [PROGRAM, DOCUMENTED], "outputs": [{"image/png": image}]}]}
            ).encode(),
            f"{n}/answers.jsonl": "\n".join(map(json.dumps, answers)).encode(),
            f"{n}/answers.csv": "\n".join(",".join(map(str, row.values())) for row in answers).encode(),
            f"{n}/results.json": json.dumps({"created": "2026-01-01", "fingerprint": _some(HEX, 64)(rng)}).encode(),
            f"{n}/cert.pem": _pem("CERTIFICATE")(rng).encode() + b"\n" + _pem("PUBLIC KEY")(rng).encode(),
            f"{n}/id_ed25519.pub": f"ssh-ed25519 {base64.b64encode(rng.randbytes(51)).decode()} me@host".encode(),
            f"{n}/SHA256SUMS": "".join(f"{_some(HEX, 64)(rng)}  model-{i}.bin\n" for i in range(50)).encode(),
            f"{n}/pointer": f"version https://git-lfs.github.com/spec/v1\noid sha256:{_some(HEX, 64)(rng)}\nsize 123\n".encode(),
            f"{n}/requirements.txt": f"torch==2.11 --hash=sha256:{_some(HEX, 64)(rng)}\nx @ git+https://git@a.b/x@{_some(HEX, 40)(rng)}".encode(),
            f"{n}/model.safetensors": struct.pack("<Q", len(header)) + header + rng.randbytes(16),
            f"{n}/weights.gguf": rng.randbytes(200_000),
        }
    return files
