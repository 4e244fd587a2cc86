//! Checks whether the servers of a connect string are one sound ensemble.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::probe::Probe;
use crate::connection::{DEFAULT_TICK, StatedTick};
use crate::spans::show_duration;

/// The modes of the members of an ensemble.
const MEMBERS: [&str; 4] = ["leader", "follower", "observer", "not serving"];

/// An owner survives the full outage if the session timeout is at least this many of the ticks that its session assumes.
const ENOUGH_TICKS: u32 = 5;

/// The first release that is not known to lose changes.
const SOUND: (u32, u32, u32) = (3, 9, 4);

/// Returns whether the server reports that it is a member of an ensemble.
pub(super) fn is_member(probe: &Probe) -> bool {
    MEMBERS.contains(&&*probe.mode)
}

/// The servers that report this mode. A server with several addresses counts once.
fn with_mode<'a>(probes: &'a [Probe], mode: &str) -> BTreeSet<&'a str> {
    probes.iter().filter(|probe| probe.mode == mode).map(|probe| &*probe.target.server).collect()
}

/// The servers that report this mode. A server with several names counts once. If servers are missed because they have
/// a name in common with others, the comparison of their znodes tells whether they are one ensemble.
fn distinct_with_mode<'a>(probes: &'a [Probe], mode: &str) -> BTreeSet<&'a str> {
    let mut addresses = BTreeMap::<&str, BTreeSet<_>>::new();
    for Probe { target, .. } in probes.iter().filter(|probe| probe.mode == mode) {
        addresses.entry(&target.server).or_default().extend(target.address);
    }
    // A name of several servers comes after the names of each.
    let mut by_count: Vec<_> = addresses.into_iter().collect();
    by_count.sort_by_key(|(_, addresses)| addresses.len());
    let (mut servers, mut counted) = (BTreeSet::new(), BTreeSet::new());
    for (server, addresses) in by_count {
        if addresses.is_disjoint(&counted) {
            servers.insert(server);
        }
        counted.extend(addresses);
    }
    servers
}

/// Returns a warning for each mode that shows that the servers are not one ensemble.
pub(super) fn splits(probes: &[Probe]) -> Vec<String> {
    let mut splits = Vec::new();
    let names = |servers: &BTreeSet<&str>| servers.iter().copied().collect::<Vec<_>>().join(" and ");
    let standalone = distinct_with_mode(probes, "standalone");
    let members: BTreeSet<&str> = MEMBERS.iter().flat_map(|mode| with_mode(probes, mode)).collect();
    if standalone.len() > 1 {
        splits.push(format!(
            "{} are standalone and share nothing, so a lock has an owner on each: connect clients to one of them, or \
             make them an ensemble",
            names(&standalone)
        ));
    }
    if !standalone.is_empty() && !members.is_empty() {
        splits.push(format!(
            "{} is standalone beside the ensemble of {}, so a lock can have two owners: take it out of the connect \
             string, or make it a member of the ensemble",
            names(&standalone),
            names(&members)
        ));
    }
    let leaders = distinct_with_mode(probes, "leader");
    if leaders.len() > 1 {
        splits.push(format!(
            "{} both lead: they belong to two ensembles, or the leader is changing right now; run doctor again, and connect \
             clients to one ensemble",
            names(&leaders)
        ));
    }
    splits
}

/// Returns a warning for each fault. `asked` is the session timeout that zklock asks for.
pub(super) fn findings(probes: &[Probe], stated: Option<StatedTick>, asked: Duration) -> Vec<String> {
    let mut findings = splits(probes);
    for server in with_mode(probes, "not serving") {
        findings.push(format!(
            "{server} does not serve: it is starting, or is in contact with too few servers of its ensemble, or leads with \
             leaderServes=no; start the other servers, or check the network between them"
        ));
    }
    findings.extend(flawed_releases(probes));
    findings.extend(probes.iter().filter(|_| stated.is_none()).filter_map(refusal));
    findings.extend(probes.iter().filter_map(|probe| timing(probe, stated, asked)));
    findings.extend(longer_tick(probes, stated));
    findings.extend(tick_to_state(probes, stated));
    findings
}

/// Returns the servers that may be members of an ensemble, and whose releases are not known.
pub(super) fn hidden_releases(probes: &[Probe]) -> Vec<&str> {
    let hidden =
        |probe: &&Probe| probe.granted.is_some() && probe.mode != "standalone" && probe.version.is_none();
    let servers: BTreeSet<&str> = probes.iter().filter(hidden).map(|probe| &*probe.target.server).collect();
    servers.into_iter().collect()
}

/// Returns a warning for each member of an ensemble whose release can lose changes.
fn flawed_releases(probes: &[Probe]) -> Vec<String> {
    let members = probes.iter().filter(|probe| is_member(probe));
    let flawed =
        members.filter_map(|probe| Some((&*probe.target.server, flaw_of(probe.version.as_deref()?)?)));
    let flawed: BTreeSet<(&str, String)> = flawed.collect();
    let finding = |(server, flaw): (&str, String)| {
        let (major, minor, patch) = SOUND;
        format!(
            "{server} has a release that can lose changes, and a lock with them ({flaw}): install {major}.{minor}.{patch} \
             or later"
        )
    };
    flawed.into_iter().map(finding).collect()
}

/// The issues that make a release lose changes in an ensemble, or `None` if there are none.
fn flaw_of(version: &str) -> Option<String> {
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let release = (numbers.next()?, numbers.next()?, numbers.next()?);
    let issues: Vec<&str> = [
        (release < (3, 9, 3), "ZOOKEEPER-4712"),
        (release < (3, 8, 5) || ((3, 9, 0)..(3, 9, 2)).contains(&release), "ZOOKEEPER-4785"),
        (release == (3, 9, 3), "ZOOKEEPER-4925"),
    ]
    .into_iter()
    .filter_map(|(is_flawed, issue)| is_flawed.then_some(issue))
    .collect();
    (release < SOUND).then(|| format!("{version}: {}", issues.join(", ")))
}

/// Returns the tick that a session assumes at a server.
fn assumed_tick(probe: &Probe, stated: Option<StatedTick>) -> Option<Duration> {
    let max = match stated {
        Some(StatedTick::Exactly(tick)) => return Some(tick),
        Some(StatedTick::AtMost(max)) => Some(max),
        None => None,
    };
    if probe.refusal.is_some() {
        return max.or(probe.granted.map(|granted| granted / 2));
    }
    Some(probe.measured_tick.unwrap_or_default().max(max.unwrap_or(DEFAULT_TICK)))
}

/// Returns a warning if a tick lasts longer than a session assumes.
fn longer_tick(probes: &[Probe], stated: Option<StatedTick>) -> Option<String> {
    let ticks = probes.iter().filter_map(|probe| Some((probe.tick?, assumed_tick(probe, stated)?)));
    let (longest, assumed) = ticks.filter(|(tick, assumed)| tick > assumed).max()?;
    let assumed = show_duration(assumed);
    Some(format!(
        "a tick lasts {}, but clients assume {assumed} at most: {}, or a lock can have two owners when a server dies",
        show_duration(longest),
        to_state(longest)
    ))
}

/// Returns a warning if an owner survives less than it could, because a session assumes longer ticks than all servers
/// state.
fn tick_to_state(probes: &[Probe], stated: Option<StatedTick>) -> Option<String> {
    let serving = || probes.iter().filter(|probe| probe.granted.is_some());
    let ticks: Option<Vec<Duration>> = serving().map(|probe| probe.shown_tick).collect();
    let longest = ticks?.into_iter().max()?;
    let costs = |probe: &&Probe| {
        // Another warning says what a refusal costs.
        if probe.refusal.is_some() && stated.is_none() {
            return false;
        }
        let assumed = assumed_tick(probe, stated).filter(|assumed| *assumed > longest);
        assumed.is_some_and(|assumed| probe.granted < Some(assumed.saturating_mul(ENOUGH_TICKS)))
    };
    let assumed = serving().filter(costs).filter_map(|probe| assumed_tick(probe, stated)).max()?;
    Some(format!(
        "a tick lasts {}, but clients assume {}, so their locks survive only shorter outages: {}",
        show_duration(longest),
        show_duration(assumed),
        to_state(longest)
    ))
}

/// Says how to state a tick.
fn to_state(tick: Duration) -> String {
    let tick = show_duration(tick);
    format!("run zklock with --tick {tick}, and set SessionBuilder::tick in the other programs")
}

/// Returns a note if the tick could not be measured.
pub(super) fn unmeasured(probe: &Probe) -> Option<String> {
    (probe.is_distant && probe.tick.is_none()).then(|| {
        format!(
            "not checked: the tick of {}, which is too far away, or too slow, to measure it here",
            probe.target.name()
        )
    })
}

/// Returns a note if the server refuses a second connection, but the user has stated a bound of the tick. With the
/// exact tick, no session opens a second connection.
pub(super) fn harmless_refusal(probe: &Probe, stated: Option<StatedTick>) -> Option<String> {
    let Some(StatedTick::AtMost(tick)) = stated else { return None };
    let (name, refusal, tick) = (probe.target.name(), probe.refusal.as_ref()?, show_duration(tick));
    Some(format!(
        "{name} refuses this machine a second connection ({refusal}), so zklock assumes a tick of {tick} there \
         (--max-tick)"
    ))
}

/// Returns a warning if the server refuses a second connection, on which a session asks for the tick.
fn refusal(probe: &Probe) -> Option<String> {
    let (name, refusal) = (probe.target.name(), probe.refusal.as_ref()?);
    Some(format!(
        "{name} refuses this machine a second connection ({refusal}), on which a session asks for the tick; without it, \
         the session assumes half of its timeout, so short outages cost locks: raise maxClientCnxns, or state the tick \
         (zklock --tick, SessionBuilder::tick)"
    ))
}

/// Returns a warning if the tick is not known, or the session timeout is too short for it.
fn timing(probe: &Probe, stated: Option<StatedTick>, asked: Duration) -> Option<String> {
    let (name, granted) = (probe.target.name(), probe.granted?);
    if stated.is_none() && probe.refusal.is_some() {
        // The session assumes half of its timeout, as another warning says.
        return None;
    }
    if probe.tick.is_none() && stated.is_none() && !probe.is_distant {
        return Some(format!(
            "the tick of {name} is not known, because its minSessionTimeout is too short to show it; a session \
             assumes {}, so if the tick is longer, a lock can have two owners when a server dies: leave \
             minSessionTimeout at two ticks, allow the four letter word 'conf', or state the tick (zklock --tick, \
             SessionBuilder::tick)",
            show_duration(DEFAULT_TICK)
        ));
    }
    let assumed = assumed_tick(probe, stated)?;
    // If all that is wrong is that a session assumes too long a tick, another warning says so.
    let tick = probe.shown_tick.map_or(assumed, |shown| shown.min(assumed));
    let remedy = if granted < asked { "raise maxSessionTimeout to" } else { "ask for" };
    let other_remedy = match (probe.shown_tick, stated) {
        (Some(_), _) | (_, Some(StatedTick::Exactly(_))) => "",
        _ => ", or state the tick if it is shorter (zklock --tick, SessionBuilder::tick)",
    };
    (granted < tick.saturating_mul(3)).then(|| {
        format!(
            "{name} grants a session timeout of {}, which is less than three of the ticks that a session assumes there \
             ({}), so a reconnect can cost a lock: {remedy} {} or more{other_remedy}",
            show_duration(granted),
            show_duration(tick),
            show_duration(tick.saturating_mul(3))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    use crate::doctor::probe::Target;

    const ASKED: Duration = Duration::from_secs(20);

    fn probe(server: &str, mode: &str) -> Probe {
        Probe {
            target: Target::named(server),
            version: Some("3.9.4".to_owned()),
            mode: mode.to_owned(),
            granted: Some(Duration::from_secs(20)),
            tick: Some(Duration::from_secs(2)),
            shown_tick: Some(Duration::from_secs(2)),
            measured_tick: Some(Duration::from_secs(2)),
            is_distant: false,
            failure: None,
            is_denied: false,
            refusal: None,
        }
    }

    fn only_finding(probes: &[Probe]) -> String {
        let findings = findings(probes, None, ASKED);
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings[0].clone()
    }

    #[test]
    fn sound_servers_have_no_findings() {
        assert_eq!(findings(&[probe("zk1", "standalone"), probe("zk1", "standalone")], None, ASKED), [""; 0]);
        let ensemble = [probe("zk1", "follower"), probe("zk2", "leader"), probe("zk3", "observer")];
        assert_eq!(findings(&ensemble, None, ASKED), [""; 0]);
        // The modes of these servers are not known.
        assert_eq!(findings(&[probe("zk1", "serves"), probe("zk2", "serves")], None, ASKED), [""; 0]);
    }

    #[test]
    fn server_with_several_names_is_one_server() {
        let named = |server: &str, last: u8, mode: &str| {
            let address = Some(SocketAddr::from(([10, 0, 0, last], 2181)));
            let mut target = Target::named(server);
            target.address = address;
            Probe { target, ..probe(server, mode) }
        };
        let standalone = [
            named("localhost", 1, "standalone"),
            named("localhost", 2, "standalone"),
            named("zk1", 1, "standalone"),
        ];
        assert_eq!(findings(&standalone, None, ASKED), [""; 0]);
        // The first name is that of the whole ensemble.
        let (first, second) = (named("all", 1, "leader"), named("zk1", 1, "leader"));
        let followers = [named("all", 2, "follower"), named("zk2", 2, "follower")];
        assert_eq!(findings(&[&[first, second], &followers[..]].concat(), None, ASKED), [""; 0]);
        let leaders = [
            named("all", 1, "leader"),
            named("all", 2, "leader"),
            named("zk1", 1, "leader"),
            named("zk2", 2, "leader"),
        ];
        assert!(only_finding(&leaders).contains("zk1 and zk2 both lead"));
    }

    #[test]
    fn servers_that_are_not_one_ensemble_are_found() {
        let found = only_finding(&[probe("zk1", "standalone"), probe("zk2", "standalone")]);
        assert!(found.contains("zk1 and zk2 are standalone"), "{found}");
        let found =
            only_finding(&[probe("zk1", "leader"), probe("zk2", "follower"), probe("zk3", "standalone")]);
        assert!(found.contains("zk3 is standalone beside the ensemble of zk1 and zk2"), "{found}");
        let found = only_finding(&[probe("zk1", "leader"), probe("zk2", "leader")]);
        assert!(found.contains("zk1 and zk2 both lead"), "{found}");
        let found = only_finding(&[Probe { granted: None, ..probe("zk1", "not serving") }]);
        assert!(found.contains("zk1 does not serve"), "{found}");
    }

    #[test]
    fn releases_that_lose_changes_are_found() {
        for (version, flaw) in [
            ("3.8.0", Some("ZOOKEEPER-4712, ZOOKEEPER-4785")),
            ("3.8.5", Some("ZOOKEEPER-4712")),
            ("3.9.1", Some("ZOOKEEPER-4712, ZOOKEEPER-4785")),
            ("3.9.2", Some("ZOOKEEPER-4712")),
            ("3.9.3", Some("ZOOKEEPER-4925")),
            ("3.9.4", None),
            ("4.0.0", None),
            ("unknown", None),
        ] {
            let member = Probe { version: Some(version.to_owned()), ..probe("zk1", "leader") };
            match flaw {
                Some(flaw) => assert!(only_finding(&[member]).contains(&format!("({version}: {flaw})"))),
                None => assert_eq!(findings(&[member], None, ASKED), [""; 0], "{version}"),
            }
            let alone = Probe { version: Some(version.to_owned()), ..probe("zk1", "standalone") };
            assert_eq!(findings(&[alone], None, ASKED), [""; 0]);
        }
    }

    #[test]
    fn releases_that_no_server_shows_are_hidden() {
        let hidden = |server: &str| Probe { version: None, ..probe(server, "serves") };
        let probes = [hidden("zk2"), probe("zk1", "leader"), hidden("zk3"), hidden("zk3")];
        assert_eq!(hidden_releases(&probes), ["zk2", "zk3"]);
        assert_eq!(hidden_releases(&[probe("zk1", "leader"), probe("zk2", "standalone")]), [""; 0]);
        // This server cannot be used at all.
        assert_eq!(hidden_releases(&[Probe { granted: None, ..hidden("zk1") }]), [""; 0]);
    }

    #[test]
    fn unsuitable_ticks_are_found() {
        let short = [Probe { granted: Some(Duration::from_secs(5)), ..probe("zk1", "standalone") }];
        for (asked, remedy) in [(5, "ask for 6s or more"), (20, "raise maxSessionTimeout to 6s or more")] {
            let found = findings(&short, None, Duration::from_secs(asked)).concat();
            assert!(found.contains("a session timeout of 5s") && found.contains(remedy), "{found}");
        }
        // A session assumes 2 s, even if it measures a shorter tick, which may come from a low minimum.
        let tick = Some(Duration::from_millis(200));
        let fast = [Probe { tick, measured_tick: tick, shown_tick: None, ..short[0].clone() }];
        let found = only_finding(&fast);
        assert!(found.contains("(2s)") && found.contains("or state the tick if it is shorter"), "{found}");
        for stated in [StatedTick::Exactly, StatedTick::AtMost] {
            assert_eq!(findings(&fast, tick.map(stated), ASKED), [""; 0]);
        }
        let unknown =
            [Probe { tick: None, shown_tick: None, measured_tick: None, ..probe("zk1", "standalone") }];
        // The session timeout is 20 s.
        assert_eq!(findings(&unknown, Some(StatedTick::AtMost(Duration::from_secs(2))), ASKED), [""; 0]);
        assert!(
            findings(&unknown, Some(StatedTick::AtMost(Duration::from_secs(7))), ASKED)[0]
                .contains("ask for 21s or more")
        );
        let found = only_finding(&unknown);
        assert!(found.contains("the tick of zk1 is not known"), "{found}");
        // Half of the session timeout is assumed only if a server refuses the second connection.
        assert!(found.contains("a session assumes 2s, so if the tick is longer"), "{found}");
        let distant = [Probe { is_distant: true, ..unknown[0].clone() }];
        assert_eq!(findings(&distant, None, ASKED), [""; 0]);
        assert!(unmeasured(&distant[0]).unwrap().contains("too far away"));
        assert_eq!(unmeasured(&unknown[0]), None);
        let distant = [Probe { granted: Some(Duration::from_secs(4)), ..distant[0].clone() }];
        assert!(only_finding(&distant).contains("raise maxSessionTimeout to 6s or more"));
        let longest = Some(StatedTick::Exactly(Duration::MAX));
        assert!(findings(&unknown, longest, ASKED)[0].contains("less than three"));
    }

    #[test]
    fn tick_that_is_longer_than_a_session_assumes_is_found() {
        let tick = |tick, measured_tick| Probe {
            tick: Some(Duration::from_secs(tick)),
            shown_tick: Some(Duration::from_secs(tick)),
            measured_tick: Some(Duration::from_secs(measured_tick)),
            ..probe("zk1", "standalone")
        };
        // By default, the minimum session timeout is two ticks, so sessions measure the tick.
        assert_eq!(findings(&[tick(3, 3)], None, ASKED), [""; 0]);
        let stated = |seconds| Some(StatedTick::AtMost(Duration::from_secs(seconds)));
        assert_eq!(findings(&[tick(3, 1)], stated(3), ASKED), [""; 0]);
        assert_eq!(findings(&[tick(3, 4)], None, ASKED), [""; 0]);
        let found = only_finding(&[tick(3, 1), tick(2, 2)]);
        assert!(found.contains("a tick lasts 3s, but clients assume 2s at most"), "{found}");
        let refusing = [Probe { refusal: Some("no session".to_owned()), ..tick(3, 3) }];
        assert!(findings(&refusing, stated(1), ASKED)[0].contains("clients assume 1s at most"));
        let exactly = Some(StatedTick::Exactly(Duration::from_secs(2)));
        let found = findings(&[tick(3, 3)], exactly, ASKED).concat();
        assert!(found.contains("clients assume 2s at most: run zklock with --tick 3s, and set"), "{found}");
    }

    #[test]
    fn tick_is_to_be_stated_where_sessions_assume_a_longer_one() {
        let raised = Probe { measured_tick: Some(Duration::from_secs(10)), ..probe("zk1", "follower") };
        let other = probe("zk2", "leader");
        let found = only_finding(&[raised.clone(), other.clone()]);
        let expected = "a tick lasts 2s, but clients assume 10s, so their locks survive only shorter outages: run zklock \
                        with --tick 2s, and set SessionBuilder::tick in the other programs";
        assert_eq!(found, expected);
        let exactly = Some(StatedTick::Exactly(Duration::from_secs(2)));
        assert_eq!(findings(&[raised.clone(), other.clone()], exactly, ASKED), [""; 0]);
        // The longest tick of all servers counts.
        let slow = Some(Duration::from_secs(3));
        let slow = Probe { tick: slow, shown_tick: slow, ..other.clone() };
        let found = findings(&[raised.clone(), slow], None, ASKED).concat();
        assert!(found.contains("clients assume 10s, so") && found.contains("--tick 3s"), "{found}");
        // Do not state what one server may not have.
        let silent = Probe { shown_tick: None, ..other };
        let found = findings(&[raised.clone(), silent], None, ASKED).concat();
        assert!(!found.contains("--tick 2s"), "{found}");
        // Longer sessions survive the full outage.
        let patient = Probe { granted: Some(Duration::from_secs(50)), ..raised };
        assert_eq!(findings(&[patient], None, ASKED), [""; 0]);
    }

    #[test]
    fn refused_second_connection_is_one_finding_unless_the_tick_is_stated() {
        for tick in [None, Some(Duration::from_secs(2))] {
            let refusal = Some("no session".to_owned());
            let probes = [Probe { tick, shown_tick: None, refusal, ..probe("zk1", "standalone") }];
            let stated = Some(StatedTick::AtMost(Duration::from_secs(2)));
            let exactly = Some(StatedTick::Exactly(Duration::from_secs(2)));
            for stated in [stated, exactly] {
                assert_eq!(findings(&probes, stated, ASKED), [""; 0]);
            }
            assert_eq!(harmless_refusal(&probes[0], exactly), None);
            assert!(harmless_refusal(&probes[0], stated).unwrap().contains("assumes a tick of 2s"));
            assert_eq!(harmless_refusal(&probes[0], None), None);
            let found = only_finding(&probes);
            assert!(found.contains("zk1 refuses this machine a second connection (no session)"), "{found}");
            assert!(found.contains("raise maxClientCnxns, or state the tick"), "{found}");
        }
    }
}
