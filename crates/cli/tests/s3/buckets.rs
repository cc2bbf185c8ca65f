//! `mb` and `rb`.

use crate::common::Cluster;

#[test]
fn buckets_are_made_and_removed_from_the_command_line() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let refused = |args: &[&str]| {
        let output = cluster.try_run(args, b"x");
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(cluster.run(&["mb", "s3://mine"]), b"s3://mine/ is there\n");
    assert_eq!(cluster.run(&["mb", "s3://mine", "--json"]), b"{\n  \"bucket\": \"mine\"\n}\n", "as good");
    assert!(cluster.try_run(&["put", "-", "s3://mine/a"], b"x").status.success());
    assert!(refused(&["rb", "s3://mine"]).contains("BucketNotEmpty"));
    cluster.run(&["rm", "-r", "s3://mine"]);
    assert_eq!(cluster.run(&["rb", "s3://mine"]), b"removed s3://mine/\n");
    assert!(refused(&["rb", "s3://mine"]).contains("there is no bucket \"mine\""));
    assert!(refused(&["mb", "s3://No_Such"]).contains("3 to 63"));
    for no_bucket in ["mine", "s3://", "s3://mine/a", "s3:mine"] {
        assert!(refused(&["mb", no_bucket]).contains("s3://BUCKET"), "{no_bucket}");
    }
    assert!(cluster.stop());
}
