"""What a program that uses boto3 may expect. One function, one promise; all of them run against one cluster.

Usage: boto3_test.py ENDPOINT ACCESS_KEY SECRET_KEY [path|virtual [CERTIFICATE]]
"""

import base64
import datetime
import hashlib
import io
import json
import socket
import ssl
import sys
import threading
import traceback
import urllib.request
import uuid

import boto3
import botocore
from boto3.s3.transfer import TransferConfig
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]
STYLE = sys.argv[4] if len(sys.argv) > 4 else "path"
VERIFY = sys.argv[5] if len(sys.argv) > 5 else None
MIB = 1 << 20

# Not every resolver knows that names below localhost are this machine.
resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *args, **named: resolve(
    "127.0.0.1" if str(host).endswith("localhost") else host, *args, **named)


def client(access=ACCESS, secret=SECRET, **options):
    config = Config(signature_version="s3v4", s3={"addressing_style": STYLE}, retries={"max_attempts": 1}, **options)
    keys = {"aws_access_key_id": access, "aws_secret_access_key": secret}
    return boto3.client("s3", endpoint_url=ENDPOINT, region_name="us-east-1", verify=VERIFY, config=config, **keys)


def urlopen(request):
    context = ssl.create_default_context(cafile=VERIFY) if VERIFY else None
    return urllib.request.urlopen(request, context=context)


s3 = client()
tests = []


def test(function):
    tests.append(function)
    return function


def bucket():
    name = f"t-{uuid.uuid4()}"
    s3.create_bucket(Bucket=name)
    return name


def body(length, seed=0):
    block = hashlib.sha256(str(seed).encode()).digest()
    return (block * (length // len(block) + 1))[:length]


def fails(code, call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        said = error.response["Error"]["Code"]
        assert said == code, f"{said} and not {code}"
        return error.response
    raise AssertionError(f"succeeded, and should have been {code}")


@test
def put_and_get():
    b = bucket()
    for length in (0, 1, 65_536, 65_537, MIB, 3 * MIB + 7):
        data = body(length, length)
        put = s3.put_object(Bucket=b, Key="k", Body=data, ContentType="text/x", Metadata={"a": "ä?"[1:], "n": str(length)})
        assert put["ETag"] == f'"{hashlib.md5(data).hexdigest()}"', put["ETag"]
        got = s3.get_object(Bucket=b, Key="k")
        assert got["Body"].read() == data
        assert got["ContentType"] == "text/x" and got["Metadata"]["n"] == str(length)
        head = s3.head_object(Bucket=b, Key="k")
        assert head["ContentLength"] == length and head["ETag"] == put["ETag"]


@test
def an_empty_file_does_not_answer_for_the_next():
    # What is read from a file is sent when the store says that it may come: but for an empty one it need not say so.
    b, one = bucket(), client(max_pool_connections=1)
    for first in ({}, {"IfNoneMatch": "*"}):
        for _ in range(2):
            try:
                one.put_object(Bucket=b, Key="empty", Body=io.BytesIO(), **first)
            except ClientError as error:
                assert error.response["Error"]["Code"] == "PreconditionFailed", error
            md5 = "AAAAAAAAAAAAAAAAAAAAAA=="
            fails("BadDigest", one.put_object, Bucket=b, Key="k", Body=io.BytesIO(b"bytes"), ContentMD5=md5)
            one.put_object(Bucket=b, Key="k", Body=io.BytesIO(b"bytes"))
            assert s3.get_object(Bucket=b, Key="k")["Body"].read() == b"bytes"


@test
def ranges_and_conditions():
    b, data = bucket(), body(2 * MIB + 5, "r")
    etag = s3.put_object(Bucket=b, Key="k", Body=data)["ETag"]
    for ask, want in (("bytes=0-0", data[:1]), ("bytes=5-", data[5:]), ("bytes=-7", data[-7:]),
                      (f"bytes={MIB - 3}-{MIB + 3}", data[MIB - 3:MIB + 4])):
        got = s3.get_object(Bucket=b, Key="k", Range=ask)
        assert got["Body"].read() == want and got["ResponseMetadata"]["HTTPStatusCode"] == 206, ask
    for beyond in ("bytes=99999999-", "bytes=-0"):
        fails("InvalidRange", s3.get_object, Bucket=b, Key="k", Range=beyond)
    # Ranges that are none count for nothing; the header is signed here all the same.
    for senseless in ("bytes=9-3", "bytes=x-y", "bytes=", "bytes=0-1,5-6", "lines=1-2", "9"):
        got = s3.get_object(Bucket=b, Key="k", Range=senseless)
        assert got["Body"].read() == data and got["ResponseMetadata"]["HTTPStatusCode"] == 200, senseless
        assert s3.head_object(Bucket=b, Key="k", Range=senseless)["ContentLength"] == len(data), senseless
        fails("SignatureDoesNotMatch", client(secret="wrong").get_object, Bucket=b, Key="k", Range=senseless)
        fails("304", s3.get_object, Bucket=b, Key="k", IfNoneMatch=etag, Range=senseless)
    fails("304", s3.get_object, Bucket=b, Key="k", IfNoneMatch=etag)
    fails("PreconditionFailed", s3.get_object, Bucket=b, Key="k", IfMatch='"0"')


@test
def signatures_of_version_2():
    b = bucket()
    s3.put_object(Bucket=b, Key="k", Body=b"x")
    old = boto3.client("s3", endpoint_url=ENDPOINT, region_name="us-east-1", verify=VERIFY, aws_access_key_id=ACCESS,
                       aws_secret_access_key=SECRET, config=Config(signature_version="s3", s3={"addressing_style": STYLE}))
    fails("InvalidRequest", old.get_object, Bucket=b, Key="k")
    fails("InvalidRequest", old.put_object, Bucket=b, Key="new", Body=b"x")
    signed = old.generate_presigned_url("get_object", {"Bucket": b, "Key": "k"})
    assert "AWSAccessKeyId=" in signed, signed
    try:
        urlopen(signed)
        raise AssertionError("a signature of version 2 is good")
    except urllib.error.HTTPError as error:
        assert error.code == 400 and b"Please use AWS4-HMAC-SHA256" in error.read()


@test
def what_is_not_there():
    b = bucket()
    fails("NoSuchKey", s3.get_object, Bucket=b, Key="k")
    fails("404", s3.head_object, Bucket=b, Key="k")
    fails("NoSuchBucket", s3.get_object, Bucket="no-such-bucket-here", Key="k")
    fails("NoSuchBucket", s3.list_objects_v2, Bucket="no-such-bucket-here")
    s3.delete_object(Bucket=b, Key="k")
    s3.put_object(Bucket=b, Key="k", Body=b"x")
    fails("BucketNotEmpty", s3.delete_bucket, Bucket=b)
    s3.delete_object(Bucket=b, Key="k")
    s3.delete_bucket(Bucket=b)
    fails("404", s3.head_bucket, Bucket=b)


@test
def lists():
    b = bucket()
    keys = sorted([f"a/{n:03}" for n in range(25)] + ["b", "c/d/e", "ü", "z z&<>\"'"], key=str.encode)
    for key in keys:
        s3.put_object(Bucket=b, Key=key, Body=key.encode())
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=b, PaginationConfig={"PageSize": 7})
    assert [o["Key"] for page in pages for o in page.get("Contents", [])] == keys
    pages = s3.get_paginator("list_objects").paginate(Bucket=b, PaginationConfig={"PageSize": 7})
    assert [o["Key"] for page in pages for o in page.get("Contents", [])] == keys
    top = s3.list_objects_v2(Bucket=b, Delimiter="/")
    assert [p["Prefix"] for p in top["CommonPrefixes"]] == ["a/", "c/"]
    assert [o["Key"] for o in top["Contents"]] == [k for k in keys if "/" not in k]
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=b, Prefix="a/02")["Contents"]] == [f"a/{n:03}" for n in range(20, 25)]
    after = s3.list_objects_v2(Bucket=b, StartAfter="a/020", MaxKeys=2)
    assert [o["Key"] for o in after["Contents"]] == ["a/021", "a/022"] and after["IsTruncated"]
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=b, Delimiter="/", PaginationConfig={"PageSize": 1})
    assert [p["Prefix"] for page in pages for p in page.get("CommonPrefixes", [])] == ["a/", "c/"]
    many = s3.delete_objects(Bucket=b, Delete={"Objects": [{"Key": key} for key in keys] + [{"Key": "none"}]})
    assert len(many["Deleted"]) == len(keys) + 1 and "Errors" not in many
    assert s3.list_objects_v2(Bucket=b)["KeyCount"] == 0


@test
def odd_keys():
    b = bucket()
    keys = ["..", ".", "../x", "a/../b", "a/./b", "./a", "/", "//", "a//b", "/a", "a/", "a/..", " ", " a ", "+", "%2e%2e/x",
            "%", "\u00e9", "e\u0301", "\u202e", "\ufeff", "\ufffd", "\U0001f980", "\u00a0", "a\\b", "a\tb", "a\nb", "\x7f",
            "?x=1", "a&b=c", "#", "\U0010ffff" * 256, "x" * 1024, "NULL", "null", "$(id)", "'\";--"]
    for key in keys:
        s3.put_object(Bucket=b, Key=key, Body=key.encode())
    for key in keys:
        assert s3.get_object(Bucket=b, Key=key)["Body"].read() == key.encode(), repr(key)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=b, PaginationConfig={"PageSize": 7})
    listed = [o["Key"] for page in pages for o in page.get("Contents", [])]
    assert listed == sorted(keys, key=str.encode), listed
    for key in keys:
        s3.copy_object(Bucket=b, Key="copy", CopySource={"Bucket": b, "Key": key})
        assert s3.get_object(Bucket=b, Key="copy")["Body"].read() == key.encode(), repr(key)
        s3.delete_object(Bucket=b, Key=key)
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=b)["Contents"]] == ["copy"]
    fails("KeyTooLongError", s3.put_object, Bucket=b, Key="x" * 1025, Body=b"")


@test
def copies():
    b = bucket()
    data = body(2 * MIB, "c")
    s3.put_object(Bucket=b, Key="a b", Body=data, Metadata={"x": "1"}, ContentType="a/b")
    s3.copy_object(Bucket=b, Key="c", CopySource={"Bucket": b, "Key": "a b"})
    got = s3.get_object(Bucket=b, Key="c")
    assert got["Body"].read() == data and got["Metadata"] == {"x": "1"} and got["ContentType"] == "a/b"
    s3.copy_object(Bucket=b, Key="c", CopySource={"Bucket": b, "Key": "c"}, Metadata={"y": "2"}, MetadataDirective="REPLACE")
    assert s3.head_object(Bucket=b, Key="c")["Metadata"] == {"y": "2"}
    fails("InvalidRequest", s3.copy_object, Bucket=b, Key="c", CopySource={"Bucket": b, "Key": "c"})


@test
def multipart():
    b, data = bucket(), body(17 * MIB + 3, "m")
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    s3.upload_fileobj(io.BytesIO(data), b, "k", Config=config)
    etag = hashlib.md5(b"".join(hashlib.md5(data[n:n + 5 * MIB]).digest() for n in range(0, len(data), 5 * MIB))).hexdigest()
    head = s3.head_object(Bucket=b, Key="k")
    assert head["ETag"] == f'"{etag}-4"', head["ETag"]
    into = io.BytesIO()
    s3.download_fileobj(b, "k", into, Config=config)
    assert into.getvalue() == data
    upload = s3.create_multipart_upload(Bucket=b, Key="p", Metadata={"m": "p"})["UploadId"]
    one = s3.upload_part(Bucket=b, Key="p", UploadId=upload, PartNumber=1, Body=data[:5 * MIB])["ETag"]
    two = s3.upload_part_copy(Bucket=b, Key="p", UploadId=upload, PartNumber=2, CopySource={"Bucket": b, "Key": "k"},
                              CopySourceRange=f"bytes={5 * MIB}-{6 * MIB - 1}")["CopyPartResult"]["ETag"]
    assert [u["UploadId"] for u in s3.list_multipart_uploads(Bucket=b)["Uploads"]] == [upload]
    assert [p["PartNumber"] for p in s3.list_parts(Bucket=b, Key="p", UploadId=upload)["Parts"]] == [1, 2]
    fails("NoSuchKey", s3.get_object, Bucket=b, Key="p")
    wrong = {"Parts": [{"PartNumber": 1, "ETag": two}]}
    fails("InvalidPart", s3.complete_multipart_upload, Bucket=b, Key="p", UploadId=upload, MultipartUpload=wrong)
    parts = {"Parts": [{"PartNumber": 1, "ETag": one}, {"PartNumber": 2, "ETag": two}]}
    s3.complete_multipart_upload(Bucket=b, Key="p", UploadId=upload, MultipartUpload=parts)
    got = s3.get_object(Bucket=b, Key="p")
    assert got["Body"].read() == data[:6 * MIB] and got["Metadata"] == {"m": "p"}
    upload = s3.create_multipart_upload(Bucket=b, Key="q")["UploadId"]
    s3.upload_part(Bucket=b, Key="q", UploadId=upload, PartNumber=1, Body=b"x")
    s3.abort_multipart_upload(Bucket=b, Key="q", UploadId=upload)
    fails("NoSuchUpload", s3.list_parts, Bucket=b, Key="q", UploadId=upload)


@test
def conditional_writes():
    b = bucket()
    etag = s3.put_object(Bucket=b, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    fails("PreconditionFailed", s3.put_object, Bucket=b, Key="k", Body=b"2", IfNoneMatch="*")
    etag = s3.put_object(Bucket=b, Key="k", Body=b"3", IfMatch=etag)["ETag"]
    fails("PreconditionFailed", s3.put_object, Bucket=b, Key="k", Body=b"4", IfMatch='"0123"')
    assert s3.get_object(Bucket=b, Key="k")["Body"].read() == b"3"
    wins = []

    def race(n):
        try:
            client().put_object(Bucket=b, Key="race", Body=str(n).encode(), IfNoneMatch="*")
            wins.append(n)
        except ClientError:
            pass

    racers = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    [r.start() for r in racers]
    [r.join() for r in racers]
    assert len(wins) == 1, wins
    assert s3.get_object(Bucket=b, Key="race")["Body"].read() == str(wins[0]).encode()


@test
def versions():
    b = bucket()
    s3.put_object(Bucket=b, Key="k", Body=b"0")
    s3.put_bucket_versioning(Bucket=b, VersioningConfiguration={"Status": "Enabled"})
    assert s3.get_bucket_versioning(Bucket=b)["Status"] == "Enabled"
    one = s3.put_object(Bucket=b, Key="k", Body=b"1")["VersionId"]
    two = s3.put_object(Bucket=b, Key="k", Body=b"2")["VersionId"]
    assert s3.get_object(Bucket=b, Key="k", VersionId=one)["Body"].read() == b"1"
    marker = s3.delete_object(Bucket=b, Key="k")
    assert marker["DeleteMarker"]
    fails("NoSuchKey", s3.get_object, Bucket=b, Key="k")
    listed = s3.list_object_versions(Bucket=b)
    assert [v["VersionId"] for v in listed["Versions"]] == [two, one, "null"], listed
    assert [m["VersionId"] for m in listed["DeleteMarkers"]] == [marker["VersionId"]]
    s3.delete_object(Bucket=b, Key="k", VersionId=marker["VersionId"])
    assert s3.get_object(Bucket=b, Key="k")["Body"].read() == b"2"
    s3.delete_object(Bucket=b, Key="k", VersionId=two)
    assert s3.get_object(Bucket=b, Key="k")["Body"].read() == b"1"


@test
def checksums():
    b, data = bucket(), body(MIB + 1, "s")
    for algorithm in ("CRC32", "SHA1", "SHA256"):
        put = s3.put_object(Bucket=b, Key=algorithm, Body=data, ChecksumAlgorithm=algorithm)
        got = s3.get_object(Bucket=b, Key=algorithm, ChecksumMode="ENABLED")
        assert got[f"Checksum{algorithm}"] == put[f"Checksum{algorithm}"] and got["Body"].read() == data
    fails("BadDigest", s3.put_object, Bucket=b, Key="bad", Body=data, ChecksumSHA256="A" * 43 + "=")
    fails("BadDigest", s3.put_object, Bucket=b, Key="bad", Body=data, ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==")
    fails("NoSuchKey", s3.get_object, Bucket=b, Key="bad")


@test
def tags():
    b = bucket()
    s3.put_object(Bucket=b, Key="k", Body=b"x", Tagging="a=1&b=2")
    assert len(s3.get_object_tagging(Bucket=b, Key="k")["TagSet"]) == 2
    s3.put_object_tagging(Bucket=b, Key="k", Tagging={"TagSet": [{"Key": "c", "Value": "3"}]})
    assert s3.get_object_tagging(Bucket=b, Key="k")["TagSet"] == [{"Key": "c", "Value": "3"}]
    s3.delete_object_tagging(Bucket=b, Key="k")
    assert s3.get_object_tagging(Bucket=b, Key="k")["TagSet"] == []


@test
def presigned():
    b = bucket()
    sign = lambda call, seconds=60: s3.generate_presigned_url(call, Params={"Bucket": b, "Key": "p q"}, ExpiresIn=seconds)
    request = urllib.request.Request(sign("put_object"), data=b"signed", method="PUT")
    assert urlopen(request).status == 200
    assert urlopen(sign("get_object")).read() == b"signed"
    try:
        urlopen(sign("get_object")[:-4] + "0000")
        raise AssertionError("a forged address was good")
    except urllib.error.HTTPError as error:
        assert error.code == 403, error.code
    try:
        urlopen(sign("get_object", 604_801))
        raise AssertionError("an address was good for more than a week")
    except urllib.error.HTTPError as error:
        assert error.code == 400 and b"AuthorizationQueryParametersError" in error.read(), error.code


def form(post, data, **fields):
    """What a browser sends for a form with a file."""
    fields = {**post["fields"], **fields}
    parts = [f'--frontier\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    file = '--frontier\r\nContent-Disposition: form-data; name="file"; filename="f.bin"\r\nContent-Type: text/x\r\n\r\n'
    sent = "".join(parts).encode() + file.encode() + data + b"\r\n--frontier--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=frontier"}
    try:
        return urlopen(urllib.request.Request(post["url"], data=sent, headers=headers, method="POST"))
    except urllib.error.HTTPError as error:
        return error


@test
def forms():
    b = bucket()
    limits = [["content-length-range", 1, 2 * MIB], ["starts-with", "$Content-Type", "text/"], {"x-amz-meta-a": "b"},
              {"success_action_status": "201"}]
    post = s3.generate_presigned_post(b, "form/k", Conditions=limits, ExpiresIn=60, Fields={
        "Content-Type": "text/x", "x-amz-meta-a": "b", "success_action_status": "201"})
    data = body(MIB + 5, "form")
    answer = form(post, data)
    assert answer.status == 201 and b"<Key>form/k</Key>" in answer.read()
    got = s3.get_object(Bucket=b, Key="form/k")
    assert got["Body"].read() == data and got["ContentType"] == "text/x" and got["Metadata"] == {"a": "b"}
    other, empty = {"Content-Type": "image/x"}, base64.b64encode(b"{}").decode()
    for status, code, wrong in (
            (400, "EntityTooLarge", form(post, body(3 * MIB))), (400, "EntityTooSmall", form(post, b"")),
            (403, "AccessDenied", form(post, b"x", key="form/other")), (403, "AccessDenied", form(post, b"x", **other)),
            (403, "AccessDenied", form(post, b"x", **{"x-amz-meta-b": "c"})), (501, "NotImplemented", form(post, b"x", extra="1")),
            (403, "AccessDenied", form(post, b"x", **{"x-amz-date": "20200101T000000Z"})),
            (403, "SignatureDoesNotMatch", form(post, b"x", **{"x-amz-signature": "0" * 64})),
            (400, "InvalidPolicyDocument", form(post, b"x", policy=empty)), (400, "InvalidRequest", form(post, b"x", AWSAccessKeyId="k"))):
        said = wrong.read().decode()
        assert wrong.code == status and f"<Code>{code}</Code>" in said, (status, code, wrong.code, said)
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=b)["Contents"]] == ["form/k"]
    assert s3.head_object(Bucket=b, Key="form/k")["ContentLength"] == len(data)
    plain = s3.generate_presigned_post(b, "p", ExpiresIn=60)
    assert form(plain, b"plain").status == 204
    acl = s3.generate_presigned_post(b, "q", Fields={"acl": "public-read"}, Conditions=[{"acl": "public-read"}])
    refused = form(acl, b"x")
    assert refused.code == 400 and b"<Code>AccessControlListNotSupported</Code>" in refused.read(), refused.code
    late = s3.generate_presigned_post(b, "p", ExpiresIn=-5)
    assert form(late, b"late").code == 403
    assert form({"url": plain["url"], "fields": {"key": "p"}}, b"nobody").code == 403
    assert s3.get_object(Bucket=b, Key="p")["Body"].read() == b"plain"
    fails("404", s3.head_object, Bucket=b, Key="q")


@test
def strangers():
    b = bucket()
    fails("SignatureDoesNotMatch", client(secret="wrong" * 8).list_objects_v2, Bucket=b)
    fails("InvalidAccessKeyId", client(access="NOBODY00000000000000").list_objects_v2, Bucket=b)


@test
def object_lock():
    b = f"t-{uuid.uuid4()}"
    s3.create_bucket(Bucket=b, ObjectLockEnabledForBucket=True)
    until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    put = lambda **lock: s3.put_object(Bucket=b, Key="k", Body=b"x", **lock)["VersionId"]
    governed = put(ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=until)
    head = s3.head_object(Bucket=b, Key="k")
    assert head["ObjectLockMode"] == "GOVERNANCE" and abs(head["ObjectLockRetainUntilDate"] - until) < datetime.timedelta(seconds=2)
    fails("AccessDenied", s3.delete_object, Bucket=b, Key="k", VersionId=governed)
    s3.delete_object(Bucket=b, Key="k", VersionId=governed, BypassGovernanceRetention=True)
    strict = put()
    s3.put_object_retention(Bucket=b, Key="k", VersionId=strict, Retention={"Mode": "COMPLIANCE", "RetainUntilDate": until})
    assert s3.get_object_retention(Bucket=b, Key="k")["Retention"]["Mode"] == "COMPLIANCE"
    fails("AccessDenied", s3.delete_object, Bucket=b, Key="k", VersionId=strict, BypassGovernanceRetention=True)
    held = put()
    s3.put_object_legal_hold(Bucket=b, Key="k", VersionId=held, LegalHold={"Status": "ON"})
    assert s3.get_object_legal_hold(Bucket=b, Key="k")["LegalHold"]["Status"] == "ON"
    many = s3.delete_objects(Bucket=b, Delete={"Objects": [{"Key": "k", "VersionId": v} for v in (strict, held)]})
    assert [e["Code"] for e in many["Errors"]] == ["AccessDenied"] * 2
    s3.put_object_legal_hold(Bucket=b, Key="k", VersionId=held, LegalHold={"Status": "OFF"})
    s3.delete_object(Bucket=b, Key="k", VersionId=held)
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    s3.put_object_lock_configuration(Bucket=b, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule})
    assert s3.get_object_lock_configuration(Bucket=b)["ObjectLockConfiguration"]["Rule"] == rule
    fails("AccessDenied", s3.delete_object, Bucket=b, Key="k", VersionId=put())


@test
def policies():
    b = bucket()
    s3.put_object(Bucket=b, Key="open/k", Body=b"for all")
    s3.put_object(Bucket=b, Key="k", Body=b"for some")
    anyone = boto3.client("s3", endpoint_url=ENDPOINT, region_name="us-east-1", verify=VERIFY, config=Config(
        signature_version=botocore.UNSIGNED, s3={"addressing_style": STYLE}, retries={"max_attempts": 1}))
    fails("NoSuchBucketPolicy", s3.get_bucket_policy, Bucket=b)
    fails("AccessDenied", anyone.get_object, Bucket=b, Key="open/k")
    text = json.dumps({"Version": "2012-10-17", "Statement": [{
        "Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject"], "Resource": [f"arn:aws:s3:::{b}/open/*"]}]})
    s3.put_bucket_policy(Bucket=b, Policy=text)
    assert s3.get_bucket_policy(Bucket=b)["Policy"] == text
    assert s3.get_bucket_policy_status(Bucket=b)["PolicyStatus"]["IsPublic"]
    assert anyone.get_object(Bucket=b, Key="open/k")["Body"].read() == b"for all"
    fails("AccessDenied", anyone.get_object, Bucket=b, Key="k")
    fails("AccessDenied", anyone.put_object, Bucket=b, Key="open/k", Body=b"x")
    fails("AccessDenied", anyone.list_objects_v2, Bucket=b)
    fails("MalformedPolicy", s3.put_bucket_policy, Bucket=b, Policy=text.replace("GetObject", "GetObjcet"))
    s3.delete_bucket_policy(Bucket=b)
    fails("AccessDenied", anyone.get_object, Bucket=b, Key="open/k")


@test
def encryption():
    b = bucket()
    data = body(MIB + 7, "sealed")
    for algorithm in ("AES256", "aws:kms"):
        put = s3.put_object(Bucket=b, Key=algorithm, Body=data, ServerSideEncryption=algorithm)
        got = s3.get_object(Bucket=b, Key=algorithm)
        assert put["ServerSideEncryption"] == got["ServerSideEncryption"] == algorithm and got["Body"].read() == data
    # Only over an encrypted connection does botocore send a customer's key.
    if not ENDPOINT.startswith("https"):
        return
    own, other = ({"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key * 32} for key in "ab")
    s3.put_object(Bucket=b, Key="own", Body=data, **own)
    part = s3.get_object(Bucket=b, Key="own", Range="bytes=70000-80000", **own)
    assert part["Body"].read() == data[70_000:80_001]
    fails("400", s3.head_object, Bucket=b, Key="own")
    fails("AccessDenied", s3.get_object, Bucket=b, Key="own", **other)


@test
def what_is_refused():
    b = bucket()
    fails("NotImplemented", s3.put_object, Bucket=b, Key="k", Body=b"x", ServerSideEncryption="aws:kms:dsse")
    fails("NotImplemented", s3.put_bucket_replication, Bucket=b, ReplicationConfiguration={
        "Role": "r", "Rules": [{"Status": "Enabled", "Destination": {"Bucket": "arn:aws:s3:::x"}}]})
    fails("NoSuchKey", s3.get_object, Bucket=b, Key="k")


failed = []
for function in tests:
    try:
        function()
        print(f"{function.__name__}: ok", flush=True)
    except Exception:
        failed.append(function.__name__)
        print(f"{function.__name__}: FAILED\n{traceback.format_exc()}", flush=True)
sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
