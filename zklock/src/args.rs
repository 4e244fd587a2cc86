//! The arguments.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use zookeeper_recipes_lock::recipe::NamingScheme;

use crate::connection::ConnectionArgs;
use crate::spans::parse_duration;
use crate::stderr::complain;

/// Locks on Apache ZooKeeper, for scripts and operators.
#[derive(Debug, Parser)]
#[command(name = "zklock", version, before_help = NIGHT, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Logs what happens on standard error; twice for each step. RUST_LOG overrides it
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command while it holds a lock
    Run(RunArgs),
    /// Runs a command once for a key, on one of many machines
    Once(OnceArgs),
    /// Shows who holds a lock and who waits for it
    Who(WhoArgs),
    /// Shows who leads an election: the first request in the queue
    Leader(LeaderArgs),
    /// Asks the holders of a lock to release it
    Revoke(RevokeArgs),
    /// Deletes old requests that no session's end deletes
    Reap(ReapArgs),
    /// Checks the servers, and the queue of a lock
    Doctor(DoctorArgs),
    /// Prints the completions of a shell
    Completions(CompletionsArgs),
    /// Writes the manual pages
    Man(ManArgs),
}

impl Command {
    /// The directory of the lock.
    pub(crate) fn dir(&self) -> Option<&str> {
        match self {
            Command::Run(args) => Some(&args.dir),
            Command::Once(args) => Some(&args.dir),
            Command::Who(args) => Some(&args.dir),
            Command::Leader(args) => Some(&args.dir),
            Command::Revoke(args) => Some(&args.dir),
            Command::Reap(args) => Some(&args.dir),
            Command::Doctor(args) => args.dir.as_deref(),
            Command::Completions(_) | Command::Man(_) => None,
        }
    }
}

const NIGHT: &str = "\
At night:
  zklock doctor /locks/backup                    # are the servers and the queue well?
  zklock who --watch /locks/backup               # who holds the lock, and who waits, since when?
  zklock revoke /locks/backup                    # asks the holder to release it
  zklock revoke --force-after 30s /locks/backup  # takes it away; the holder may still be working
  zklock reap --older-than 1d /locks/backup      # what was left behind? --yes deletes it";

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  leader: nobody leads, or nobody knows who; doctor: there are warnings
   64  wrong usage, connect string or path
   65  the znode is no lock directory, or no request that can be revoked
   66  the directory does not exist
   69  no server can be reached, contact was lost, or the servers cannot do it
   70  the system refuses a thread, or the like
   73  the request for the lock cannot be created, for example as the chroot does not exist
   74  the output cannot be written
   75  run: the lock was not acquired (--try, --timeout); once: in progress elsewhere
   76  run, once: the lock was lost, or about to be, before the command started or while it ran
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used
   79  once: already done
  126  run, once: the command cannot be executed
  127  run, once: the command is not found
  128+n  run, once: signal n ended the command, or the wait for the lock
  141  the reader of the output has gone

'zklock SUBCOMMAND --help' has examples.";

macro_rules! run_examples {
    () => {
        "\
Examples:
  zklock run /locks/backup -- ./backup.sh --full
  zklock run --try /locks/report -- make report || echo 'another one makes it'
  zklock run --timeout 10m -c zk1,zk2/app /locks/migrate -- sh -c 'migrate --fence $ZKLOCK_FENCING_TOKEN'"
    };
}

const RUN_HELP: &str = "\
The command:
  It finds ZKLOCK_PATH, the znode of its request, and ZKLOCK_FENCING_TOKEN in its environment. It runs
  in a separate process group, to which SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM,
  SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU and SIGXFSZ are forwarded. While zklock waits for the lock, all
  but SIGUSR1 and SIGUSR2 end the wait. The lock is released when the command has ended. A 'zklock run'
  in the command for the same lock would wait for itself, and is refused, unless ZKLOCK_PATH is unset or
  names another lock that was taken in between. The command gets the environment of zklock, so also
  ZK_AUTH, ZK_SASL and ZK_CERT_KEY_PASSWORD if they are set.

The terminal:
  In the foreground, the command has the terminal as in a shell: prompts, Ctrl-C, Ctrl-Z and 'fg' work.
  After Ctrl-Z nothing renews the lock, and it is lost when its lease ends: 'fg' then kills the command.
  In the background, a command that reads from the terminal is stopped, as any job is, and holds the lock.
  zklock reports each stopped command, and ends it after --stopped-for: SIGTERM, and SIGKILL after --grace.

The time for the lock:
  To bound the time of the command as well, run it by timeout(1): zklock run DIR -- timeout 1h COMMAND.
  Without --try and --timeout, zklock waits for the lock for ever, and for a server for 10s or the
  session timeout, whichever is less (exit code 69). With --timeout, both together have that time: the
  servers may restart meanwhile. The wait ends with exit code 69 if contact is lost for a session
  timeout while the request is in the queue.

When the lock is lost:
  During an outage, the lock can be given to another client when its lease ends. The command gets
  SIGTERM when the lease lasts for --grace more, which counts as a quarter of the session timeout at
  most, and SIGKILL before the lease ends. If another client deletes the znode of the lock, the next
  client may own it at once: the command gets SIGTERM then, and SIGKILL after --grace. When another
  client asks for the lock ('zklock revoke'), the command gets SIGTERM.
  The command is not started when the lock is lost before, or about to be.
  The command is killed at once if zklock itself is ended by SIGKILL, on Linux. Its children are not, and
  run on without the lock, unless zklock is process 1 of a container or systemd ends them
  (KillMode=mixed). A command that has changed its user, as sudo has, is not killed either. If zklock
  alone is suspended (SIGSTOP, a frozen container) for longer than the lease, the command runs on without
  the lock. So a command that writes to a shared resource should send its fencing token along.

What is ended:
  SIGTERM goes to the process group of the command. SIGKILL goes to the group and, on Linux, to all of
  its other descendants, such as those of timeout, setsid, or a second 'zklock run' in the command:
  zklock adopts processes whose parents have ended, and ends when it has killed the last one. When the
  command ends after SIGTERM, what is left of these gets SIGKILL. Where zklock is process 1 of a
  container, it adopts, and kills, the other orphans of the container as well. On other systems,
  descendants outside of the group run on without the lock.
  A process of another user, as those of sudo, gets no signal unless zklock runs as root: zklock
  reports it, and waits for the end of the command. Run 'sudo zklock run ...' instead. What a daemon
  runs for the command (systemd-run, cron, a container runtime) is none of its descendants.
  If the command ends while the lock is held, its background processes continue without the lock,
  also after a forwarded signal or a 'zklock revoke' that they ignore.

A lock that is shared with another library:
  zklock run --naming kazoo /locks/report -- make report

  zklock counts the requests of all libraries, but the other library counts only names that it knows.
  With names that it does not know, both hold the lock at once. zklock warns of such requests when it
  has acquired the lock and before it releases it. A missing
  directory is made as a container, which the server deletes when it has been empty for a while. Not
  so with 'kazoo', whose locks fail then. Apache's may fail as well: make their directory beforehand.

Exit codes:
  That of the command, 128+n if signal n ended it or the wait for the lock, or
   64  wrong usage, connect string or path
   69  no server can be reached, or contact was lost before the command ran
   70  the system refuses a thread, or the like
   73  the request for the lock cannot be created
   75  the lock was not acquired (--try, --timeout)
   76  the lock was lost, or about to be, before the command started or while it ran
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used
  126  the command cannot be executed
  127  the command is not found";

#[derive(Args, Debug)]
#[command(before_help = run_examples!(), after_long_help = RUN_HELP)]
#[command(override_usage = "zklock run [OPTIONS] <DIR> [--] <COMMAND>...")]
pub(crate) struct RunArgs {
    /// The directory of the lock, a ZooKeeper path such as /locks/backup; made if it is missing
    pub(crate) dir: String,
    /// Gives up at once if the lock is held or waited for; by default it waits for ever
    #[arg(long = "try", conflicts_with = "timeout")]
    pub(crate) attempt: bool,
    /// Gives up if the lock is not acquired in this time, which begins before the connection; 0 is --try
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// The names of requests, for a lock that is shared with another library
    #[arg(long, hide_short_help = true, value_enum, value_name = "SCHEME", default_value = "recipe")]
    pub(crate) naming: Naming,
    /// Shares the lock with others that run with --shared, and with the readers of a ReadWriteLock
    #[arg(long, conflicts_with = "naming")]
    pub(crate) shared: bool,
    /// Takes one of N permits of a semaphore, which N clients may hold at once. Use the same N everywhere
    #[arg(long, value_name = "N", conflicts_with_all = ["shared", "naming"])]
    pub(crate) permits: Option<NonZeroU32>,
    /// What 'zklock who' shows, in place of the host and the process id
    #[arg(long, hide_short_help = true, value_name = "TEXT")]
    pub(crate) data: Option<String>,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

impl RunArgs {
    /// The directory of the requests.
    pub(crate) fn queue(&self) -> String {
        match self.permits {
            Some(_) => format!("{}/leases", self.dir),
            None => self.dir.clone(),
        }
    }
}

/// A command that runs under a lock.
#[derive(Args, Debug)]
pub(crate) struct CommandArgs {
    /// The time for the command to end after SIGTERM when the lock is lost; then it is killed. Without
    /// contact it has a quarter of the session timeout at most
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    pub(crate) grace: Duration,
    /// The time after which a stopped command is ended, as it keeps the lock from others; 0 is never
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = parse_duration, default_value = "1m")]
    pub(crate) stopped_for: Duration,
    /// Does not say whom it waits for, nor why it has not run the command
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl CommandArgs {
    /// Reports what is no failure.
    pub(crate) fn mention(&self, message: &str) {
        if !self.quiet {
            complain(message);
        }
    }
}

macro_rules! once_examples {
    () => {
        "\
Examples:
  zklock once --key %F --keep 30d /jobs/report -- ./report.sh
  zklock once --key '2026-07 add index' --until-success /app/migrations -- ./migrate.sh
  0 2 * * *  zklock once -q --key \\%F --keep 30d /jobs/report -- ./report.sh   # in a crontab"
    };
}

const ONCE_HELP: &str = "\
The key:
  One machine runs the command for a key, and the others end at once. %F is the date, %Y, %m, %d, %H and
  %M its parts, all in UTC, and %% is %. In a crontab, write a backslash before each %. Let the time of the
  job be minutes away from a change of the key: the clocks of the machines differ.
  Without --until-success the key is done when the command begins, whatever becomes of it. With it, the key
  is done when the command has ended with code 0; until then the next call tries again, also if this
  machine fails. All calls for a key must agree.

Exit codes:
  That of the command, 128+n if signal n ended it or the wait, or
   64  wrong usage, connect string, path or key
   69  no server can be reached, or contact was lost before the command ran
   70  the system refuses a thread, or the like
   73  the key cannot be created
   75  in progress elsewhere
   76  the lock was lost, or about to be, before the command started or while it ran
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used
   79  already done
  126  the command cannot be executed
  127  the command is not found

'zklock run --help' says what becomes of a command whose lock is lost.";

#[derive(Args, Debug)]
#[command(before_help = once_examples!(), after_long_help = ONCE_HELP)]
#[command(override_usage = "zklock once [OPTIONS] --key <KEY> <DIR> [--] <COMMAND>...")]
pub(crate) struct OnceArgs {
    /// The directory of the keys, a ZooKeeper path such as /jobs/report; made if it is missing
    pub(crate) dir: String,
    /// What is done once, such as a date: %F, %Y, %m, %d, %H and %M are filled as by date(1), in UTC
    #[arg(long)]
    pub(crate) key: String,
    /// Counts a key as done when the command has ended with code 0, rather than when it begins
    #[arg(long)]
    pub(crate) until_success: bool,
    /// Forgets keys that were done longer ago than this
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) keep: Option<Duration>,
    /// What others are shown, in place of the host and the process id
    #[arg(long, hide_short_help = true, value_name = "TEXT")]
    pub(crate) data: Option<String>,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// The names of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Naming {
    /// Apache's WriteLock 3.8, Curator's InterProcessMutex, go-zookeeper's Lock
    Recipe,
    /// Curator's InterProcessMutex and LeaderSelector, go-zookeeper's Lock
    Curator,
    /// Curator's LeaderLatch
    CuratorLatch,
    /// kazoo's Lock and Election
    Kazoo,
}

impl Naming {
    pub(crate) fn scheme(self) -> NamingScheme {
        match self {
            Naming::Recipe => NamingScheme::Recipe,
            Naming::Curator => NamingScheme::Curator,
            Naming::CuratorLatch => NamingScheme::CuratorLatch,
            Naming::Kazoo => NamingScheme::Kazoo,
        }
    }
}

#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  zklock who /locks/backup
  zklock who --json /locks/backup | jq -r '.queue[0].who'
  zklock who --watch /locks/backup
  zklock who /app/converters/leases",
    after_long_help = "\
WHO is the data of the request, of which 48 characters are shown; --json has all of it. SINCE is by the
clock of the servers, and AGE the difference to the clock of this machine. --watch goes on until it is
ended, also through outages, which it mentions on standard error.

The permits of a semaphore are in its directory 'leases'. All but the last are held if clients wait,
which cannot be seen: the STATE of a permit is 'unknown', but for the first."
)]
pub(crate) struct WhoArgs {
    /// The directory of the lock
    pub(crate) dir: String,
    /// Shows the queue again whenever a request joins or leaves
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Prints JSON: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  zklock leader /election
  zklock leader --watch /election | while read -r since leader; do reconfigure \"$leader\"; done
  zklock leader --json /election | jq -r .leader.who",
    after_long_help = "\
Prints the data of the leader's request, by default its host and process id, in one line: control
characters are escaped, and nothing else. With --watch, each line begins with the time of the change,
and '-' stands for no leader. A client that asks the leader to step down overwrites its data: then the
exit code is 1, --watch goes on with what it has shown, or with '-', and with --json 'who' is null and
the exit code 0. --watch goes on until it is ended, also through outages, which it mentions on standard error."
)]
pub(crate) struct LeaderArgs {
    /// The directory of the election
    pub(crate) dir: String,
    /// Prints a line at each change
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Prints JSON: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  zklock revoke /locks/backup
  zklock revoke --force-after 30s /locks/backup",
    after_long_help = "\
All holders are asked: the owner, or all readers. A holder decides whether and when it releases the
lock; 'zklock run' ends its command. With --force-after the znode of a holder that has not released
the lock in that time is deleted, and the next request acquires at once. THE HOLDER MAY STILL BE
WORKING THEN. The exit code is 0 if nobody holds the lock."
)]
pub(crate) struct RevokeArgs {
    /// The directory of the lock
    pub(crate) dir: String,
    /// Takes the lock away from a holder that has not released it in this time. By default it only asks
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) force_after: Option<Duration>,
}

#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  zklock reap --older-than 1d /locks/backup
  zklock reap --older-than 1d --yes /locks/backup",
    after_long_help = "\
Only persistent requests are deleted, such as a client in another language may leave behind. Requests
of live sessions always stay: see 'zklock revoke'. So do those that no known library has named, which
are shown: delete them by hand. Ages are by the clock of the servers: to read it, a znode is created in
the directory and deleted, in one transaction, also without --yes."
)]
pub(crate) struct ReapArgs {
    /// The directory of the lock
    pub(crate) dir: String,
    /// The least age of the requests; 0 for all
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) older_than: Duration,
    /// Deletes them. Otherwise they are only shown
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  zklock doctor -c zk1,zk2,zk3/app
  zklock doctor -c zk1,zk2,zk3/app /locks/backup
  zklock doctor --json | jq -r '.warnings[]'",
    after_long_help = "\
Connects to every address of every server, for 3s at most, and opens a session on each, and a second one
beside it for 3s at most. Version, mode and tick come from the four letter words 'srvr' and 'conf', where
the server allows them and TLS is not used. Makes a znode /zklock-doctor-… for a moment, if it may, for the
clock of the servers. What was checked is listed, and what was not.

Exit codes:
    0  all is well
    1  there are warnings
   64  wrong usage, connect string or path
   69  no server can be reached
   70  the system refuses a thread, or the like
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used"
)]
pub(crate) struct DoctorArgs {
    /// The directory of a lock whose queue is checked
    pub(crate) dir: Option<String>,
    /// Prints JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(before_help = "\
Examples:
  zklock completions bash > /etc/bash_completion.d/zklock
  zklock completions fish > ~/.config/fish/completions/zklock.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
#[command(before_help = "\
Examples:
  zklock man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The directory for the pages, which must exist
    pub(crate) dir: PathBuf,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::failure::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    /// The long help of a subcommand, in one line.
    pub(crate) fn help_of(subcommand: &str) -> String {
        let mut command = Cli::command();
        // Adds the global options to each of them.
        command.build();
        let help = command.find_subcommand_mut(subcommand).unwrap().render_long_help().to_string();
        help.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The numbers at the beginnings of the lines behind this one.
    fn codes_in(text: &str) -> BTreeSet<u8> {
        let (_, codes) = text.split_once("Exit codes:").unwrap();
        codes.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
    }

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["zklock"], args].concat())
    }

    fn run_args(args: &[&str]) -> RunArgs {
        match parse(args).unwrap().command {
            Command::Run(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_has_examples_in_both_helps() {
        for command in Cli::command().get_subcommands_mut() {
            for help in [command.render_help(), command.render_long_help()] {
                assert!(help.to_string().contains("Examples:\n  zklock "), "{help}");
            }
        }
    }

    /// Of 24 lines.
    #[test]
    fn short_help_of_each_subcommand_fits_a_screen_and_begins_with_an_example() {
        let mut command = Cli::command();
        command.build();
        for command in command.get_subcommands_mut().filter(|command| command.get_name() != "help") {
            let help = command.clone().render_help().to_string();
            assert!(help.lines().count() <= 24, "{help}");
            assert!(help.starts_with("Examples:\n  zklock "), "{help}");
        }
    }

    #[test]
    fn help_names_every_exit_code() {
        let all = BTreeSet::from([
            0,
            WARNINGS,
            NOBODY,
            USAGE,
            NO_LOCK,
            NO_DIRECTORY,
            UNAVAILABLE,
            SYSTEM,
            CANNOT_CREATE,
            OUTPUT,
            NOT_ACQUIRED,
            LOST,
            DENIED,
            CONFIG,
            ALREADY_DONE,
            NOT_EXECUTABLE,
            NOT_FOUND,
            CLOSED_PIPE,
        ]);
        assert_eq!(codes_in(EXIT_CODES), all);
        assert!(codes_in(RUN_HELP).is_subset(&all) && codes_in(ONCE_HELP).is_subset(&all));
    }

    #[test]
    fn command_keeps_its_options() {
        let args = run_args(&["run", "/locks/a", "--try", "--", "ls", "-l", "--", "--try"]);
        assert!(args.attempt);
        assert_eq!(args.command.command, ["ls", "-l", "--", "--try"]);
        let args = run_args(&["run", "/locks/a", "ls", "--try"]);
        assert!(!args.attempt);
        assert_eq!(args.command.command, ["ls", "--try"]);
    }

    #[test]
    fn contradictions_and_omissions_are_refused() {
        for args in [
            &["run", "/locks/a"][..],
            &["run", "--naming", "java", "/locks/a", "ls"],
            &["run", "--try", "--timeout", "3s", "/locks/a", "ls"],
            &["run", "--unknown", "/locks/a", "ls"],
            &["who"],
            &["reap", "/locks/a"],
            &["reap", "/locks/a", "--older-than", "soon"],
            &["who", "/locks/a", "--cert", "file"],
            &["who", "/locks/a", "--cert-key", "file"],
            &["once", "/locks/a", "ls"],
            &["run", "--shared", "--permits", "2", "/locks/a", "ls"],
            &["run", "--permits", "0", "/locks/a", "ls"],
            &[],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn times_are_numbers_with_units_or_seconds() {
        assert_eq!(run_args(&["run", "--timeout", "90", "/a", "ls"]).timeout, Some(Duration::from_secs(90)));
        let timeout = run_args(&["run", "--timeout", "1m 30s", "/a", "ls"]).timeout;
        assert_eq!(timeout, Some(Duration::from_secs(90)));
        assert!(parse(&["run", "--timeout", "1M", "/a", "ls"]).is_err());
    }

    #[test]
    fn connection_options_stand_before_and_after_the_subcommand() {
        for args in [&["-c", "zk1:2181", "who", "/a"][..], &["who", "/a", "--connect", "zk1:2181"]] {
            assert_eq!(parse(args).unwrap().connection.connect, "zk1:2181", "{args:?}");
        }
    }
}
