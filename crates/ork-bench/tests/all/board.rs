// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clocks, governors and CPUs of made-up boards.

use std::path::Path;

use ork_bench::{BoardState, Clock, ClockKind, Objection, Placement, PlacementBasis, Sysfs, Units};

struct Tree(tempfile::TempDir);

impl Tree {
    fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// An RK3588 as an Orange Pi 5 shows it: clocks at their maximum.
    fn rk3588() -> Self {
        let tree = Self::empty();
        for (policy, cpus, khz) in [(0, "0 1 2 3", 1_800_000), (4, "4 5", 2_352_000), (6, "6 7", 2_304_000)] {
            let folder = format!("devices/system/cpu/cpufreq/policy{policy}");
            tree.write(&format!("{folder}/related_cpus"), cpus);
            tree.write(&format!("{folder}/scaling_governor"), "performance");
            for file in ["cpuinfo_max_freq", "scaling_max_freq", "scaling_cur_freq"] {
                tree.write(&format!("{folder}/{file}"), &khz.to_string());
            }
        }
        for cpu in 0..8 {
            let capacity = [530, 1024, 1004][usize::from(cpu >= 4) + usize::from(cpu >= 6)];
            tree.write(&format!("devices/system/cpu/cpu{cpu}/cpu_capacity"), &capacity.to_string());
        }
        for (name, hz, steps) in [
            ("fdab0000.npu", 1_000_000_000_u64, "300000000 700000000 1000000000"),
            ("dmc", 2_112_000_000, "528000000 1068000000 1560000000 2112000000"),
            ("fb000000.gpu", 300_000_000, "300000000 1000000000"),
        ] {
            let folder = format!("class/devfreq/{name}");
            tree.write(&format!("{folder}/governor"), "performance");
            tree.write(&format!("{folder}/cur_freq"), &hz.to_string());
            tree.write(&format!("{folder}/max_freq"), &hz.to_string());
            tree.write(&format!("{folder}/available_frequencies"), steps);
        }
        tree.write("class/thermal/thermal_zone0/type", "soc-thermal");
        tree.write("class/thermal/thermal_zone0/temp", "47153");
        tree.write("class/thermal/thermal_zone6/type", "npu-thermal");
        tree.write("class/thermal/thermal_zone6/temp", "51000");
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.0.path())
    }

    fn state(&self) -> BoardState {
        BoardState::read(&self.sysfs())
    }
}

fn fast() -> Units {
    Units { cpus: vec![4, 5, 6, 7], npu: true }
}

#[test]
fn all_is_read() {
    let state = Tree::rk3588().state();
    let kinds: Vec<ClockKind> = state.clocks.iter().map(|clock| clock.kind).collect();
    assert_eq!(kinds, [ClockKind::Cpu, ClockKind::Cpu, ClockKind::Cpu, ClockKind::Dram, ClockKind::Npu]);
    let npu = Clock {
        kind: ClockKind::Npu,
        source: "class/devfreq/fdab0000.npu".into(),
        cpus: vec![],
        governor: Some("performance".into()),
        driver: None,
        current_hz: Some(1_000_000_000),
        limit_hz: Some(1_000_000_000),
        hardware_hz: Some(1_000_000_000),
    };
    assert_eq!(state.clocks[4], npu);
    assert_eq!(
        (state.clocks[1].cpus.as_slice(), state.clocks[1].current_hz),
        (&[4, 5][..], Some(2_352_000_000))
    );
    let celsius: Vec<f64> = state.temperatures.iter().map(|one| one.celsius).collect();
    assert_eq!(celsius, [47.153, 51.0]);
    assert!(state.to_string().contains("hottest: 51.0 °C (npu-thermal)"), "{state}");
    assert_eq!(state.objections(&fast()), []);
}

#[test]
fn a_machine_that_shows_nothing_is_unknown_and_no_objection() {
    let tree = Tree::empty();
    let state = tree.state();
    assert_eq!(state, BoardState::default());
    assert_eq!(state.objections(&fast()), []);
    let text = state.to_string();
    for word in ["CPU clock: unknown", "NPU clock: unknown", "DRAM clock: unknown", "temperature: unknown"] {
        assert!(text.contains(word), "{text}");
    }
    // A clock of which only the governor can be read.
    tree.write("class/devfreq/dmc/governor", "dmc_ondemand");
    let state = tree.state();
    assert_eq!((state.clocks[0].current_hz, state.objections(&fast()).len()), (None, 0));
    assert!(state.to_string().contains("DRAM clock: unknown of unknown, governor dmc_ondemand"), "{state}");
}

#[test]
fn parked_limited_and_low_clocks_are_objected_to() {
    let one = |path: &str, text: &str, units: &Units| {
        let tree = Tree::rk3588();
        tree.write(path, text);
        let objections = tree.state().objections(units);
        assert!(objections.len() <= 1, "{objections:?}");
        objections.into_iter().next()
    };
    let dmc = "class/devfreq/dmc";
    let parked = one(&format!("{dmc}/governor"), "powersave", &fast()).unwrap();
    assert!(matches!(&parked, Objection::Parked { governor, .. } if governor == "powersave"));
    assert_eq!(parked.to_string(), "the DRAM clock is parked by its governor powersave");
    assert_eq!(parked.remedy(), "echo performance | sudo tee /sys/class/devfreq/dmc/governor");
    let low = one(&format!("{dmc}/cur_freq"), "528000000", &fast()).unwrap();
    assert_eq!(low.to_string(), "the DRAM clock is at 528 MHz of 2112 MHz (governor performance)");
    let limited = one("class/devfreq/fdab0000.npu/max_freq", "700000000", &fast()).unwrap();
    assert_eq!(limited.to_string(), "the NPU clock is limited to 700 MHz of 1000 MHz");
    assert!(limited.remedy().starts_with("echo 1000000000 |"), "{}", limited.remedy());
    // An NPU that is not used may sleep; so may the slow CPUs.
    let cpu_only = Units { npu: false, ..fast() };
    assert_eq!(one("class/devfreq/fdab0000.npu/max_freq", "300000000", &cpu_only), None);
    let policy = "devices/system/cpu/cpufreq/policy";
    assert_eq!(one(&format!("{policy}0/scaling_governor"), "powersave", &fast()), None);
    let low = one(&format!("{policy}6/scaling_cur_freq"), "408000", &fast()).unwrap();
    assert_eq!(low.to_string(), "the clock of CPU 6, 7 is at 408 MHz of 2304 MHz (governor performance)");
    let limited = one(&format!("{policy}4/scaling_max_freq"), "1800000", &fast()).unwrap();
    assert!(limited.remedy().starts_with("echo 2352000 |"), "{}", limited.remedy());
    // Where nobody knows which CPUs are used, all count.
    assert!(one(&format!("{policy}0/scaling_governor"), "powersave", &Units::default()).is_some());
    // Where the governor of this name follows the load, it parks nothing.
    let tree = Tree::rk3588();
    tree.write(&format!("{policy}6/scaling_governor"), "powersave");
    for (driver, objections) in [("cpufreq-dt", 1), ("intel_pstate", 0), ("amd-pstate-epp", 0)] {
        tree.write(&format!("{policy}6/scaling_driver"), driver);
        assert_eq!(tree.state().objections(&fast()).len(), objections, "{driver}");
    }
    // A divider that does not hit the number.
    assert_eq!(one(&format!("{policy}6/scaling_cur_freq"), "2290000", &fast()), None);
}

#[test]
fn clocks_that_fall_are_noticed() {
    let tree = Tree::rk3588();
    let before = tree.state();
    assert_eq!(before.fallen(&tree.state()), Vec::<String>::new());
    tree.write("class/devfreq/fdab0000.npu/cur_freq", "700000000");
    assert_eq!(before.fallen(&tree.state()), ["the NPU clock fell from 1000 MHz to 700 MHz during the run"]);
}

#[test]
fn the_fast_cpus() {
    let all: Vec<u32> = (0..8).collect();
    let tree = Tree::rk3588();
    let placement = Placement::fast_of(&tree.sysfs(), &all);
    assert_eq!((placement.cpus.as_slice(), placement.basis), (&[4, 5, 6, 7][..], PlacementBasis::Capacity));
    assert_eq!(placement.to_string(), "CPU 4, 5, 6, 7 of 8 (the fast ones by capacity)");
    // A container may have some of them only.
    assert_eq!(Placement::fast_of(&tree.sysfs(), &[2, 3, 6]).cpus, [6]);
    assert_eq!(Placement::fast_of(&tree.sysfs(), &[2, 3]).cpus, [2, 3]);

    let by_clock = Tree::empty();
    for cpu in 0..8 {
        let khz = if cpu < 4 { 1_800_000 } else { 2_400_000 };
        by_clock.write(&format!("devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq"), &khz.to_string());
    }
    let placement = Placement::fast_of(&by_clock.sysfs(), &all);
    assert_eq!((placement.cpus.as_slice(), placement.basis), (&[4, 5, 6, 7][..], PlacementBasis::Clock));

    let placement = Placement::fast_of(&Sysfs::at(Path::new("/nowhere")), &all);
    assert_eq!((placement.cpus, placement.basis), (all, PlacementBasis::Unknown));
}
