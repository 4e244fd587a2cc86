//! Finds Java and the jars of a ZooKeeper server, as `scripts/zookeeper` does.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const PACKAGES: &str = "/usr/share/java";

/// The jars that every server needs. The manifest of `zookeeper.jar` names the rest. `slf4j-simple` is the
/// only logging backend that needs no further jars.
const REQUIRED: [&str; 3] = ["zookeeper", "slf4j-api", "slf4j-simple"];

/// Jars that some versions do not need and that may be missing. The manifest omits some Netty jars that only TLS needs.
const OPTIONAL: [&str; 9] = [
    "zookeeper-jute",
    "metrics-core",
    "snappy-java",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
];

/// These flags make the JVM small and fast to start. They disable the admin server, and also fsync, because
/// the data does not matter.
///
/// The flag with `jmx` is for servers before 3.8, which otherwise look for a class that is not on the class
/// path. The flag with `log4j2` sets the log level if Log4j 2 has no configuration.
pub(super) const JVM_FLAGS: [&str; 10] = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.level=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
];

/// The main class, both for a single server and for a server of an ensemble. The configuration makes the
/// difference.
pub(super) const MAIN_CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// Returns the path of the program `java`.
pub(super) fn java() -> io::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    java_in(env::var_os("JAVA_HOME").as_deref(), &path)
}

/// Returns the class path of the server and of its Java client.
pub fn class_path() -> io::Result<OsString> {
    class_path_in(env::var_os("ZOOKEEPER_HOME").as_deref(), Path::new(PACKAGES))
}

pub fn java_in(java_home: Option<&OsStr>, path: &OsStr) -> io::Result<PathBuf> {
    let of_home = java_home.into_iter().map(|home| Path::new(home).join("bin"));
    let mut programs = of_home.chain(env::split_paths(path)).map(|dir| dir.join("java"));
    programs.find(|java| java.is_file()).ok_or_else(|| {
        missing(
            "no java in JAVA_HOME/bin or on the PATH. Install a Java runtime: on Debian, `apt-get \
             install default-jre-headless`"
                .to_owned(),
        )
    })
}

pub fn class_path_in(zookeeper_home: Option<&OsStr>, packages: &Path) -> io::Result<OsString> {
    let parts = match zookeeper_home.filter(|home| !home.is_empty()) {
        Some(home) => release(Path::new(home)).ok_or_else(|| {
            missing(format!(
                "no ZooKeeper jars in ZOOKEEPER_HOME={}. Correct it to the directory of an unpacked \
                 release, or unset it",
                Path::new(home).display()
            ))
        })?,
        None => packaged(packages).ok_or_else(|| {
            missing(format!(
                "no ZooKeeper jars in {}. On Debian, `apt-get install libzookeeper-java \
                 libslf4j-java`; elsewhere unpack a ZooKeeper release and have ZOOKEEPER_HOME name it",
                packages.display()
            ))
        })?,
    };
    env::join_paths(parts).map_err(io::Error::other)
}

fn missing(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("a ZooKeeper server cannot start: {what}"))
}

/// Returns the jars of a release or of another package. A release has most of its jars in `lib`; another
/// package may have all of them in one directory.
fn release(home: &Path) -> Option<Vec<PathBuf>> {
    let lib = home.join("lib");
    let mut found = jars_in(home);
    if lib.is_dir() {
        found.retain(|jar| is_server(jar));
        found.extend(jars_in(&lib));
    }
    // Without the logging configuration in `conf`, the release's logger prints every detail.
    found.iter().any(|jar| is_server(jar)).then(|| {
        found.insert(0, home.join("conf"));
        found
    })
}

fn jars_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut jars: Vec<_> = entries.filter(|path| path.extension() == Some("jar".as_ref())).collect();
    jars.sort();
    jars
}

fn is_server(jar: &Path) -> bool {
    let name = jar.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_prefix("zookeeper-").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn packaged(dir: &Path) -> Option<Vec<PathBuf>> {
    let jar = |name: &&str| Some(dir.join(format!("{name}.jar"))).filter(|jar| jar.exists());
    let mut found: Vec<_> = REQUIRED.iter().map(jar).collect::<Option<_>>()?;
    found.extend(OPTIONAL.iter().filter_map(jar));
    Some(found)
}
