"""Stores that are set up for something else already: rclone's remotes, AWS profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuq.config import StoreFlags, read_settings
from gpuq.rcloneremote import Remote, read_remote
from ledger.errors import RequestError
from ledger.stores.login import Login
from tests.cli.conftest import Gpuq
from tests.servers import ACCESS_KEY, SECRET_KEY, Server
from tests.servers.fixtures import _seaweedfs  # noqa: F401 - a fixture, used by its name

# As https://rclone.org/s3/ shows such files.
CONFIG = """\
# written by rclone config
[minio]
type = s3
provider = Minio
env_auth = false
access_key_id = USWUXHGYZQYFYFFIT3RE
secret_access_key = MOJRH0mkL1IPauahWITSVvyDrQbEEIwljvmxdqfa=%03
region =
endpoint = http://192.168.1.106:9000
location_constraint =

[ceph]
type = s3
provider = Ceph
access_key_id = CEPHKEY
secret_access_key = CEPHSECRET
session_token = CEPHTOKEN
region = eu
endpoint = s3.ceph.endpoint.example.com
force_path_style = false

[aws]
type = s3
provider = AWS
env_auth = true
profile = team
region = eu-west-2

[oss]
type = s3
provider = Alibaba
access_key_id = A
secret_access_key = B
endpoint = oss-accelerate.example.com

[disk]
type = local

[secret]
type = crypt
remote = minio:bucket

[half]
type = s3
access_key_id = A

[anonymous]
type = s3
provider = AWS

[old]
type = s3
v2_auth = true

[shared]
type = s3
env_auth = true
shared_credentials_file = /etc/keys
"""


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    path = tmp_path / ".config" / "rclone" / "rclone.conf"
    path.parent.mkdir(parents=True)
    path.write_text(CONFIG)
    return {"HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        (
            "rclone:minio:bucket/team/gpuq/",
            Remote(
                "s3://bucket/team/gpuq",
                "http://192.168.1.106:9000",
                "us-east-1",
                Login(
                    access_key="USWUXHGYZQYFYFFIT3RE",
                    secret_key="MOJRH0mkL1IPauahWITSVvyDrQbEEIwljvmxdqfa=%03",
                ),
            ),
        ),
        (
            "rclone:ceph:b",
            Remote(
                "s3://b",
                "https://s3.ceph.endpoint.example.com",
                "eu",
                Login(
                    access_key="CEPHKEY",
                    secret_key="CEPHSECRET",
                    session_token="CEPHTOKEN",
                    virtual_host=True,
                ),
            ),
        ),
        ("rclone:aws:b/p", Remote("s3://b/p", None, "eu-west-2", Login(profile="team"))),
        (
            "rclone:oss:b",
            Remote(
                "s3://b",
                "https://oss-accelerate.example.com",
                "us-east-1",
                Login(access_key="A", secret_key="B", virtual_host=True),
            ),
        ),
    ],
)
def test_an_s3_remote_says_how_its_bucket_is_reached(
    environ: Mapping[str, str], text: str, remote: Remote
) -> None:
    assert read_remote(text, environ) == remote


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rclone:minio", "is no store: say rclone:REMOTE:bucket/prefix"),
        ("rclone:minio:", "is no store: say rclone:REMOTE:bucket/prefix"),
        ("rclone:minio,region=eu:b", "is no store: say rclone:REMOTE:bucket/prefix"),
        ("rclone:nope:b", "there is no rclone remote 'nope'"),
        ("rclone:disk:b", "is of type 'local': only remotes of type s3 can hold a ledger"),
        ("rclone:secret:b", "is of type 'crypt': only remotes of type s3 can hold a ledger"),
        ("rclone:half:b", "has only one half of a key"),
        ("rclone:anonymous:b", "has no key: set access_key_id and secret_access_key, or env_auth"),
        ("rclone:old:b", "signs by version 2"),
        ("rclone:shared:b", "set AWS_SHARED_CREDENTIALS_FILE instead"),
    ],
)
def test_a_remote_that_cannot_hold_a_ledger_is_refused_with_the_mend(
    environ: Mapping[str, str], text: str, message: str
) -> None:
    with pytest.raises(RequestError) as raised:
        read_remote(text, environ)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"# Encrypted rclone configuration File\n\nRCLONE_ENCRYPT_V0:\nb0A=\n", "is encrypted"),
        (b"type = s3\n", "is no rclone configuration"),
        (b"\xff\xfe", "is no rclone configuration"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_to_be_so(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "other.conf"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=message):
        read_remote("rclone:minio:b", {"HOME": str(tmp_path), "RCLONE_CONFIG": str(path)})


def test_a_remote_may_stand_in_variables_alone(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "RCLONE_CONFIG_MINE_TYPE": "s3",
        "RCLONE_CONFIG_MINE_ENV_AUTH": "true",
    }
    assert read_remote("rclone:mine:b", environ) == Remote("s3://b", None, None, Login())


def test_flags_count_more_than_the_remote(environ: Mapping[str, str]) -> None:
    flags = StoreFlags(store="rclone:minio:b", endpoint_url="http://other", region="us-west-1")
    choice = read_settings(flags, environ).store
    assert (choice.url, choice.endpoint_url, choice.region) == (
        "s3://b",
        "http://other",
        "us-west-1",
    )


def test_no_secret_is_ever_shown(environ: Mapping[str, str]) -> None:
    assert "MOJRH0mkL1" not in repr(read_remote("rclone:minio:b", environ))


# --- on a real server


def test_a_ledger_on_an_rclone_remote_needs_no_other_setting(
    gpuq: Gpuq, seaweedfs: Server, script: str, tmp_path: Path
) -> None:
    rclone = tmp_path / "home" / ".config" / "rclone" / "rclone.conf"
    rclone.parent.mkdir(parents=True)
    rclone.write_text(
        f"[mine]\ntype = s3\nprovider = SeaweedFS\nendpoint = {seaweedfs.endpoint_url}\n"
        f"access_key_id = {ACCESS_KEY}\nsecret_access_key = {SECRET_KEY}\n"
    )
    store = f"rclone:mine:{seaweedfs.new_bucket()}/team"
    made = gpuq("init", store)
    assert (made.rc, made.err) == (0, "")
    config = (tmp_path / "home" / ".config" / "gpuq" / "config.toml").read_text()
    assert config == f'store = "{store}"\n'
    (job,) = gpuq("submit", "-q", script).ids
    shown = gpuq("status", "--json").json
    assert shown["jobs"][0]["id"] == job
    assert shown["store"] == f"s3://{store.rpartition(':')[2]}"
    for path in (tmp_path / "home").rglob("*"):
        assert path == rclone or not path.is_file() or SECRET_KEY.encode() not in path.read_bytes()


def test_a_profile_of_aws_says_keys_region_and_endpoint(
    gpuq: Gpuq,
    seaweedfs: Server,
    script: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A name: of an address no bucket's name could become a part.
    endpoint_url = seaweedfs.endpoint_url.replace("127.0.0.1", "localhost")
    folder = tmp_path / "home" / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        f"[team]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    (folder / "config").write_text(
        f"[profile team]\nregion = us-east-1\nendpoint_url = {endpoint_url}\n"
    )
    store = f"s3://{seaweedfs.new_bucket()}/team"
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert gpuq("init", store).rc == 0
    (job,) = gpuq("submit", "-q", script).ids
    assert gpuq("status", "--json").json["jobs"][0]["id"] == job


def test_the_variable_of_aws_names_the_endpoint(
    gpuq: Gpuq, seaweedfs: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL": seaweedfs.endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, text)
    assert gpuq("init", f"s3://{seaweedfs.new_bucket()}/team").rc == 0
