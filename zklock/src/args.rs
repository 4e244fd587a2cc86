//! The command-line arguments and their help.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use zookeeper_recipes_lock::recipe::NamingScheme;

use crate::connection::ConnectionArgs;
use crate::spans::{parse_duration, parse_positive_duration};
use crate::stderr::complain;

/// Locks on Apache ZooKeeper, for scripts and operators.
#[derive(Debug, Parser)]
#[command(name = "zklock", version, before_help = TROUBLESHOOTING, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Logs to standard error: events with -v, every step with -vv. RUST_LOG overrides this
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command while holding a lock
    Run(RunArgs),
    /// Runs a command once per key, on one of many machines
    Once(OnceArgs),
    /// Shows who holds a lock and who waits for it
    Who(WhoArgs),
    /// Shows the leader of an election: the first request in its queue
    Leader(LeaderArgs),
    /// Asks the holders of a lock to release it
    Revoke(RevokeArgs),
    /// Deletes old requests that were left behind
    Reap(ReapArgs),
    /// Checks the servers and the queue of a lock
    Doctor(DoctorArgs),
    /// Prints a completion script for a shell
    Completions(CompletionsArgs),
    /// Writes the manual pages
    Man(ManArgs),
}

impl Command {
    /// The directory that the subcommand works on.
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

const TROUBLESHOOTING: &str = "\
Troubleshooting:
  zklock doctor /locks/backup                    # are the servers and the queue healthy?
  zklock who --watch /locks/backup               # who holds the lock, who waits, and since when?
  zklock revoke /locks/backup                    # ask the holder to release it
  zklock revoke --force-after 30s /locks/backup  # take the lock away; the holder may still be working
  zklock reap --older-than 1d /locks/backup      # list requests left behind; --yes deletes them";

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  leader: nobody leads, or the leader's data was overwritten; doctor: there are warnings
   64  wrong usage, connect string or path
   65  the path is not a lock directory, or the holder cannot be asked to release the lock
   66  the directory does not exist
   69  no server can be reached, contact was lost, or the servers report another error
   70  the system cannot provide a thread or another resource; run, once: it is not a Unix system
   73  a znode cannot be created (the chroot does not exist, a quota is exceeded), or requests are throttled
   74  the output cannot be written
   75  run: the lock was not acquired (--try, --timeout); once: in progress elsewhere
   76  run, once: the lock was lost, or about to be, before the command started or while it ran
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used, or certificates are refused
   79  once: already done
  126  run, once: the command cannot be executed
  127  run, once: the command was not found
  128+n  run, once: signal n ended the command, or the wait for the lock
  141  the reader of the output has gone

'zklock SUBCOMMAND --help' has examples.";

macro_rules! run_examples {
    () => {
        "\
Examples:
  zklock run /locks/backup -- ./backup.sh --full
  zklock run --try /locks/report -- make report || echo 'being made elsewhere'
  zklock run --timeout 10m -c zk1,zk2/app /locks/migrate -- sh -c 'migrate --fence $ZKLOCK_FENCING_TOKEN'"
    };
}

const RUN_HELP: &str = "\
The command:
  The command gets the environment of zklock, including ZK_AUTH, ZK_SASL and ZK_CERT_KEY_PASSWORD if they
  are set. zklock adds ZKLOCK_PATH, the znode of its request, and ZKLOCK_FENCING_TOKEN. With --shared and
  --permits, there is no token: several commands hold the lock at once, so no token orders them.
  The command runs in a separate process group. zklock forwards every signal that it can catch to that group,
  except those that report a fault of zklock itself, such as SIGSEGV. What zklock was started to ignore, the
  command ignores. While zklock waits for the lock, each signal ends the wait, except SIGUSR1, SIGUSR2, and
  those that do nothing by default, such as SIGWINCH.
  The parent of the command is its guardian, another process of zklock, which takes no signals.
  zklock releases the lock when the command has ended; with --until-all-end, when everything that the command
  has started has ended, too. The exit code is then that of the command, even if a
  signal ends the wait for the release.
  Where LISTEN_PID, WATCHDOG_PID or SYSTEMD_EXEC_PID names zklock, it names the command instead. A systemd
  service whose command reports READY=1 or a watchdog needs NotifyAccess=all.
  A 'zklock run' inside the command, for the same lock, would wait for itself, so it is refused. zklock
  detects this from ZKLOCK_PATH. It cannot do so if that variable is unset, or names another lock that was
  taken in between, or with --permits.

The terminal:
  In the foreground, the command has the terminal, as in a shell: prompts, Ctrl-C, Ctrl-Z and 'fg' work. It
  gets the terminal when it first uses it. Before that, Ctrl-C goes to the whole job.
  After Ctrl-Z, nothing renews the lock, so the command is ended before its lease ends. 'fg' in time goes on.
  In the background, a command that reads from the terminal is stopped, as any job is. It keeps the lock.
  zklock reports a stopped command and ends it after --stopped-for: with SIGTERM, and with SIGKILL after
  --grace.

The wait:
  By default, zklock waits for the lock forever. It waits for a server for 10s or the session timeout,
  whichever is less, and then ends with exit code 69.
  --timeout replaces these limits with one for both waits together, so a restart of the servers need not end
  the wait. It holds within half a second even if the servers are silent.
  A signal ends every wait for a silent server, also after the command, in two seconds at most. The request
  may then stay in the queue until the servers end the session. zklock reports this if it finds out.
  If contact is lost for a session timeout while zklock is in the queue, it ends with exit code 69.
  To limit the run time of the command as well, use timeout(1): zklock run DIR -- timeout 1h COMMAND.

When the lock is lost:
  During an outage, another client can get the lock soon after the lease ends. The command gets SIGTERM when
  only --grace or a quarter of the session timeout remains, whichever is less. It gets SIGKILL just before
  the lease ends.
  If another client deletes the znode of the lock, the next client may own the lock at once. The command
  gets SIGTERM immediately, and SIGKILL after --grace.
  If another client asks for the release of the lock ('zklock revoke'), the command gets SIGTERM, but no
  SIGKILL.
  If the lock is lost, or about to be, before the command starts, zklock does not start it.
  If zklock itself is killed, stopped or frozen, the guardian ends the command in the same way, in time. If the
  guardian is killed, Linux kills the command, and zklock ends the rest. If both are stopped or killed at the
  same time (a frozen container), the command may run for a moment without the lock, or on. A command that
  writes to a shared resource should therefore send its fencing token along.

What is ended:
  SIGTERM goes to the process group of the command. SIGKILL goes to the group and, on Linux, to all other
  descendants of the command, such as those started by timeout, setsid, or a second 'zklock run'. If the
  lock is lost and the command ends after SIGTERM, any of these processes that still run get SIGKILL.
  The guardian adopts descendants whose parents have ended. If they have to be killed, zklock exits after the
  last one has ended.
  On other systems, descendants outside the group run on without the lock.
  A process of another user, such as one started by sudo, gets no signal unless zklock runs as root. zklock
  reports this and waits until the command ends. Run 'sudo zklock run ...' instead.
  A process that a daemon starts for the command (systemd-run, cron, a container runtime) is not a
  descendant, so it runs on.
  If the command ends while the lock is held, its background processes continue without the lock, unless
  zklock has the option --until-all-end. Without
  --wait, setsid starts such a process and ends at once: use 'zklock run DIR -- setsid --wait COMMAND'. If a
  forwarded signal or 'zklock revoke' ends the command, only those that ignore the signal or are outside the
  process group continue.

Windows:
  zklock refuses to run a command where it cannot end the command and all that descends from it before
  another client gets the lock. That takes a Unix system.

A lock shared with another library:
  zklock run --naming kazoo /locks/report -- make report

  zklock takes the requests of all libraries into account. Other libraries ignore requests whose names they
  do not know. If a library does not know the names that zklock uses, both can hold the lock at once. zklock
  looks for requests of such a library when it has acquired the lock, and again before it releases the lock.
  It warns of them once.
  A lock and a semaphore (--permits) never exclude each other. If the path is in use as the other of the two,
  zklock refuses with exit code 65 before the command runs.
  zklock creates a missing directory as a container, which the server deletes after it has been empty for a
  while. After that, kazoo's locks fail, so with '--naming kazoo' the directory is an ordinary znode. Apache's
  locks may fail as well: create their directory beforehand.

Exit codes:
  The exit code of the command, or
   64  wrong usage, connect string or path, or a 'zklock run' around this one holds the same lock
   65  the path is in use as a semaphore, or with --permits as a lock
   69  no server can be reached, or contact was lost before the command ran
   70  the system cannot provide a thread or another resource, or is not a Unix system
   73  the request for the lock cannot be created
   75  the lock was not acquired (--try, --timeout)
   76  the lock was lost, or about to be, before the command started or while it ran; or another client
       deleted the request while zklock waited
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used, or certificates are refused
  126  the command cannot be executed
  127  the command was not found
  128+n  signal n ended the command, or the wait for the lock";

#[derive(Args, Debug)]
#[command(before_help = run_examples!(), after_long_help = RUN_HELP)]
#[command(override_usage = "zklock run [OPTIONS] <DIR> [--] <COMMAND>...")]
pub(crate) struct RunArgs {
    /// The directory of the lock, a ZooKeeper path such as /locks/backup; created if missing
    pub(crate) dir: String,
    /// Gives up at once if others hold the lock or wait for it; by default zklock waits forever
    #[arg(long = "try", conflicts_with = "timeout")]
    pub(crate) attempt: bool,
    /// Gives up if the lock is not acquired within this time, which includes connecting; 0 means --try
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// How requests are named, for a lock shared with another library
    #[arg(long, hide_short_help = true, value_enum, value_name = "SCHEME", default_value = "recipe")]
    pub(crate) naming: Naming,
    /// Shares the lock with others that use --shared, and with readers of a ReadWriteLock
    #[arg(long, conflicts_with = "naming")]
    pub(crate) shared: bool,
    /// Takes one of N permits of a semaphore, so at most N clients run at once. Use the same N everywhere
    #[arg(long, value_name = "N", conflicts_with_all = ["shared", "naming"])]
    pub(crate) permits: Option<NonZeroU32>,
    /// What 'zklock who' shows instead of the host and the process id
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
    /// How long the command may take to end after SIGTERM when the lock is lost; then it is killed.
    /// Without contact, it has at most a quarter of the session timeout
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    pub(crate) grace: Duration,
    /// How long a stopped command may keep the lock before it is ended; 0 means forever
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = parse_duration, default_value = "1m")]
    pub(crate) stopped_for: Duration,
    /// Keeps the lock until everything that the command has started has ended, such as workers in the background
    /// (Linux only)
    #[arg(long, hide_short_help = true)]
    pub(crate) until_all_end: bool,
    /// Does not report that others hold the lock or have run the key, or that the session timeout is short
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl CommandArgs {
    /// Reports something that is not a failure. With `--quiet`, does not even build the message.
    pub(crate) fn mention(&self, message: impl FnOnce() -> String) {
        if !self.quiet {
            complain(&message());
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
  One machine runs the command for a key. On the others, zklock exits at once. In the key, %F stands for
  the date, and %Y, %m, %d, %H and %M for the parts of date and time, all in UTC. %% stands for %. In a
  crontab, write a backslash before each %. In a systemd unit, write %% for each %, such as --key %%F:
  systemd has meanings of its own for %Y, %m, %d, %H and %M, so each machine would get a key of its own,
  run the command, and never run it again. zklock warns of a key that looks like that. Schedule the job at
  least a few minutes before or after the key changes, because the clocks of the machines differ.
  By default, a key is done just before the command begins, even if the command then fails or, rarely, cannot
  begin (a missing interpreter, a signal). With --until-success, the key is done when the command has ended
  with code 0. Until then, the next call tries again, even if this machine fails. All calls for a key must
  agree on --until-success.
  On a machine that lacks the command, zklock exits without looking at the key.

Exit codes:
  The exit code of the command, or
   64  wrong usage, connect string, path or key
   69  no server can be reached, or contact was lost before the command ran (the key may be marked: then the
       next call ends with 79) or, with --until-success, before the key was marked
   70  the system cannot provide a thread or another resource, or is not a Unix system
   73  the key cannot be created
   75  in progress elsewhere
   76  the lock was lost, or about to be, before the command started or while it ran
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used, or certificates are refused
   79  already done
  126  the command cannot be executed
  127  the command was not found
  128+n  signal n ended the command, or the wait

'zklock run --help' says what happens to a command whose lock is lost.";

#[derive(Args, Debug)]
#[command(before_help = once_examples!(), after_long_help = ONCE_HELP)]
#[command(override_usage = "zklock once [OPTIONS] --key <KEY> <DIR> [--] <COMMAND>...")]
pub(crate) struct OnceArgs {
    /// The directory of the keys, a ZooKeeper path such as /jobs/report; created if missing
    pub(crate) dir: String,
    /// A name for what is done once; may contain the date: %F, %Y, %m, %d, %H, %M as in date(1), in UTC
    #[arg(long)]
    pub(crate) key: String,
    /// Counts a key as done when the command has ended with code 0, not when it begins
    #[arg(long)]
    pub(crate) until_success: bool,
    /// Forgets keys that were done longer ago than this
    #[arg(long, value_name = "TIME", value_parser = parse_positive_duration)]
    pub(crate) keep: Option<Duration>,
    /// What others see instead of the host and the process id
    #[arg(long, hide_short_help = true, value_name = "TEXT")]
    pub(crate) data: Option<String>,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// How requests are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Naming {
    /// Apache's WriteLock 3.8, Curator's InterProcessMutex and LeaderSelector, go-zookeeper's Lock
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
WHO is the data of the request. The table shows its first 48 characters, --json all of it. SINCE is a time
on the clock of the servers. AGE is how far the clock of this machine is past SINCE. --watch runs until it
is ended, even through outages, which it reports on standard error.

The requests for a semaphore are in its directory 'leases'. Every request there holds a permit, except
perhaps the last, which may still be waiting. zklock cannot tell, so the STATE of all but the first is
'unknown'.

Exit codes:
    0  done
   64  wrong usage, connect string or path
   65  the path is not a lock directory (not with --watch)
   66  the directory does not exist (not with --watch)
   69  no server can be reached, contact was lost, or the servers report another error
   70  the system cannot provide a thread or another resource
   73  requests are throttled
   74  the output cannot be written
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used, or certificates are refused
  141  the reader of the output has gone"
)]
pub(crate) struct WhoArgs {
    /// The directory of the lock
    pub(crate) dir: String,
    /// Shows the queue again whenever a request joins or leaves
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Prints JSON, one object per line
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
Prints the data of the leader's request on one line. By default, that is its host and process id. Control
characters, line separators and marks that change the writing direction are escaped, and nothing else is.

--watch prints a line now and at each change. Without --json, the line begins with the time, and '-' stands
for no leader. --watch runs until it is ended, even through outages, which it reports on standard error.

A client that asks the leader to step down overwrites the data of the leader. The exit code is then 1.
With --json, 'who' is null and the exit code is 0. --watch goes on showing the earlier data, or '-'.

Exit codes:
    0  done
    1  nobody leads, or the leader's data was overwritten
   64  wrong usage, connect string or path
   65  the path is not a lock directory (not with --watch)
   66  the directory does not exist (not with --watch)
   69  no server can be reached, contact was lost, or the servers report another error
   70  the system cannot provide a thread or another resource
   73  requests are throttled
   74  the output cannot be written
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used, or certificates are refused
  141  the reader of the output has gone"
)]
pub(crate) struct LeaderArgs {
    /// The directory of the election
    pub(crate) dir: String,
    /// Prints a line now and at each change
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Prints JSON, one object per line
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
Asks every holder: the owner, or all readers. Of a semaphore (DIR/leases), it asks only the holder of the
oldest permit. A holder decides whether and when it releases the lock. A 'zklock run' ends its command.

With --force-after, zklock deletes the znode of a holder that has not released the lock in that time. The
next request then acquires the lock at once. THE HOLDER MAY STILL BE WORKING.

Exit codes:
    0  done, or nobody holds the lock
   64  wrong usage, connect string or path
   65  the path is not a lock directory, or a holder cannot be asked to release the lock
   66  the directory does not exist
   69  no server can be reached, contact was lost, or the servers report another error
   70  the system cannot provide a thread or another resource
   73  a quota is exceeded, or requests are throttled
   74  the output cannot be written
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used, or certificates are refused
  141  the reader of the output has gone"
)]
pub(crate) struct RevokeArgs {
    /// The directory of the lock
    pub(crate) dir: String,
    /// Takes the lock from a holder that has not released it in this time. By default zklock only asks
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
Deletes only persistent requests, which a client in another language may leave behind. Requests of live
sessions always stay: see 'zklock revoke'. Persistent requests with names that no known library uses also
stay, but zklock shows them, and you can delete them by hand.

Ages are measured by the clock of the servers. To read it, zklock creates a znode in the directory and
deletes it in the same transaction, even without --yes.

Exit codes:
    0  done, even if there is nothing to delete
   64  wrong usage, connect string or path
   65  the path is not a lock directory
   66  the directory does not exist
   69  no server can be reached, contact was lost, or the servers report another error
   70  the system cannot provide a thread or another resource
   73  a znode cannot be created (a quota is exceeded), or requests are throttled
   74  the output cannot be written
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used, or certificates are refused
  141  the reader of the output has gone"
)]
pub(crate) struct ReapArgs {
    /// The directory of the lock
    pub(crate) dir: String,
    /// The minimum age of the requests; 0 means all of them
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) older_than: Duration,
    /// Deletes the requests. By default they are only shown
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
Connects to every address of every server, and waits at most 3s for each connection. Opens a session there,
and then a second one beside it, within 12s. Reads version, mode and tick with the four letter words 'srvr'
and 'conf', if the server allows them and TLS is not used. Creates a temporary znode /zklock-doctor-…, which
shows the clock of the servers. If several addresses serve, opens another session at each, and asks for that
znode: only servers of one ensemble know it.
With a directory, also tries to create a request there and to delete it again, as a lock does. The servers
check both and refuse them together, so nothing is left. If the directory is missing, the trial creates it and
its missing parents, too. Compares the queue that each server shows. Checks that the directory has sequence
numbers left.
The output lists what was checked. What could not be checked is a warning. Only what servers never show is no
warning: jute.maxbuffer, their release with TLS, and the tick over a long distance.

Exit codes:
    0  all is well
    1  there are warnings, or something could not be checked
   64  wrong usage, connect string or path
   69  no server can be reached, contact was lost, or the servers report another error
   70  the system cannot provide a thread or another resource
   73  requests are throttled
   74  the output cannot be written
   77  access denied, or credentials refused
   78  a file of credentials or certificates cannot be used, or certificates are refused
  141  the reader of the output has gone"
)]
pub(crate) struct DoctorArgs {
    /// The directory of a lock, to check its queue and to try what a lock does there
    pub(crate) dir: Option<String>,
    /// Prints JSON, one object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  zklock completions bash > /etc/bash_completion.d/zklock
  zklock completions fish > ~/.config/fish/completions/zklock.fish",
    after_long_help = "\
Exit codes:
    0  done
   64  wrong usage
   70  the system cannot provide a thread or another resource
   74  the output cannot be written
  141  the reader of the output has gone"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  zklock man /usr/local/share/man/man1",
    after_long_help = "\
Exit codes:
    0  done
   64  wrong usage
   70  the system cannot provide a thread or another resource
   74  the pages cannot be written"
)]
pub(crate) struct ManArgs {
    /// An existing directory to write the pages to
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
        // Adds the global options to each subcommand.
        command.build();
        let help = command.find_subcommand_mut(subcommand).unwrap().render_long_help().to_string();
        help.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The exit codes that a help text lists: the numbers at the start of each line after `Exit codes:`.
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

    /// A screen has 24 lines.
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
        for command in Cli::command().get_subcommands_mut() {
            let codes = codes_in(&command.render_long_help().to_string());
            assert!(codes.contains(&USAGE) && codes.is_subset(&all), "{command}: {codes:?}");
        }
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
