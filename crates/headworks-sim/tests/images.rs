//! Images that change between the death of a server and the next start: without a defect no rule is broken, and each is found.

use headworks_sim::joints::images::{ImagesDefect, ImagesMet, run};

#[test]
fn kept_blocks_go_to_their_images_only() {
    let mut met = ImagesMet::default();
    for seed in 0..20_000 {
        match run(seed, ImagesDefect::None) {
            Ok(one) => met.add(&one),
            Err((violation, history)) => {
                panic!("seed {seed}: {}: {} {history:?}", violation.rule, violation.detail)
            }
        }
    }
    println!("{met:?}");
    assert!(met.restored > 1_000 && met.beside > 1_000 && met.reused > 1_000, "{met:?}");
}

#[test]
fn wrong_decisions_about_images_are_found() {
    for defect in ImagesDefect::ALL {
        let found = (0..1_000).find(|&seed| run(seed, defect).is_err());
        println!("{defect:?}: {found:?}");
        assert!(found.is_some(), "{defect:?}");
    }
}
