"""An upload of as many parts as S3 has, by several at once.

Usage: parts_test.py ENDPOINT ACCESS_KEY SECRET_KEY
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

MOST = 10_000
ENDPOINT, ACCESS, SECRET = sys.argv[1:4]
s3 = boto3.client("s3", endpoint_url=ENDPOINT, region_name="us-east-1", aws_access_key_id=ACCESS,
                  aws_secret_access_key=SECRET, config=Config(max_pool_connections=8))
numbers = range(1, MOST + 1)
s3.create_bucket(Bucket="parts")
upload = {"Bucket": "parts", "Key": "k", "UploadId": s3.create_multipart_upload(Bucket="parts", Key="k")["UploadId"]}
with ThreadPoolExecutor(8) as pool:
    put = lambda number: s3.upload_part(**upload, PartNumber=number, Body=str(number).encode())["ETag"]
    tags = list(pool.map(put, numbers))
pages = s3.get_paginator("list_parts").paginate(**upload)
listed = [(part["PartNumber"], part["ETag"]) for page in pages for part in page["Parts"]]
assert listed == list(zip(numbers, tags))
parts = [{"PartNumber": number, "ETag": tag} for number, tag in listed]
try:
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    raise AssertionError("parts that are too small were joined")
except ClientError as error:
    assert error.response["Error"]["Code"] == "EntityTooSmall", error
# Only the last part may be small.
s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts[-1:]})
assert s3.get_object(Bucket="parts", Key="k")["Body"].read() == str(MOST).encode()
assert "Uploads" not in s3.list_multipart_uploads(Bucket="parts")
