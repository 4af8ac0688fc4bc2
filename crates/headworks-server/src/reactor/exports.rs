//! The exports that a shard knows: what the handshake lists, and where a client's requests go.
//!
//! An export keeps its id from `put` to `take`. The handshake lists active exports in the order in which they were
//! added; an index into that list is valid until the list changes. It lists the same for all clients, and says for each whether a
//! client sees it: that is judged when an export, its tenant or the rules change, and looked up when a client asks.
//!
//! ```text
//! put --> active <--hide, show--> hidden (its clients are disconnected) --take--> the id is free
//! ```

use std::sync::Arc;

use headworks_core::{DeviceId, ExportId, Ioprio, ShardId, VolumeId};

use crate::clients::nbd::connection::ExportBinding;
use crate::exports::access::{AccessRules, Admission, ExportDirectory, RulesInForce, Sight};
use crate::exports::assemble::export_info::{ServedExport, UnavailableExport};
use crate::exports::assemble::shown_name;
use crate::spec::tenant::TenantName;
use headworks::house::display_size;
use headworks_nbd::ExportInfo;

struct ExportSlot {
    export: ServedExport,
    hidden: bool,
    /// It was given up: nothing waits for its requests.
    abandoned: bool,
    /// No client may open it now.
    refuses: bool,
    /// How the rules of access judge it.
    sight: Sight,
}

/// All exports of a server, as one shard knows them.
#[derive(Default)]
pub struct ExportTable {
    /// Slots indexed by [`ExportId`].
    places: Vec<Option<ExportSlot>>,
    /// Listed exports in order.
    infos: Vec<ExportInfo>,
    /// Ids of the listed exports.
    ids: Vec<ExportId>,
    /// Exports that are absent; the list has them last, so they have no ids.
    absent: Vec<(UnavailableExport, Sight)>,
    /// Which client sees which export. Only the shard that accepts clients is told of changes.
    rules: RulesInForce,
}

impl ExportTable {
    pub fn new(exports: impl Iterator<Item = ServedExport>, rules: Vec<Arc<AccessRules>>) -> Self {
        let rules = RulesInForce::new(rules);
        let place = |export: ServedExport| {
            let sight = rules.sight(&export.info.name, export.owner);
            Some(ExportSlot { export, hidden: false, abandoned: false, refuses: false, sight })
        };
        let places = exports.map(place).collect();
        let mut all = Self { places, rules, ..Self::default() };
        all.list();
        all
    }

    /// Export and home shard of an index of the list.
    pub fn chosen(&self, index: usize) -> Option<(ExportId, ShardId)> {
        let id = *self.ids.get(index)?;
        self.place(id).map(|place| (id, place.export.shard))
    }

    /// Binding and description of an active export.
    pub fn open(&self, id: ExportId) -> Option<(ExportBinding, &ExportInfo)> {
        let place = self.place(id).filter(|place| !place.hidden)?;
        Some((place.export.binding, &place.export.info))
    }

    /// Returns the first export of a volume; a number that no export has if there is none.
    pub fn first_of(&self, volume: VolumeId) -> ExportId {
        let of = |place: &&ExportSlot| place.export.binding.volume == volume;
        let found = self.places.iter().flatten().find(of);
        found.map_or(ExportId(u16::MAX), |place| place.export.binding.export)
    }

    /// Replaces the exports that clients are refused with a reason.
    pub fn set_absent(&mut self, absent: Vec<UnavailableExport>) {
        let judged = |absent: UnavailableExport| {
            let sight = self.rules.sight(&absent.info.name, absent.owner);
            (absent, sight)
        };
        self.absent = absent.into_iter().map(judged).collect();
        self.list();
    }

    /// Replaces the rules of access; see [`RulesInForce::set`].
    pub fn set_access(&mut self, rules: Vec<Arc<AccessRules>>) {
        self.rules.set(rules);
        for ExportSlot { export, sight, .. } in self.places.iter_mut().flatten() {
            *sight = self.rules.sight(&export.info.name, export.owner);
        }
        for (absent, sight) in &mut self.absent {
            *sight = self.rules.sight(&absent.info.name, absent.owner);
        }
    }

    /// Sets the tenant by which listeners offer an export.
    pub fn set_owner(&mut self, id: ExportId, owner: Option<TenantName>) {
        let places = self.places.get_mut(usize::from(id.0));
        if let Some(place) = places.and_then(Option::as_mut) {
            place.export.owner = owner;
            place.sight = self.rules.sight(&place.export.info.name, owner);
        }
    }

    /// Adds an export, or replaces the one with its id.
    pub fn put(&mut self, export: ServedExport) {
        let index = usize::from(export.binding.export.0);
        if self.places.len() <= index {
            self.places.resize_with(index + 1, || None);
        }
        let sight = self.rules.sight(&export.info.name, export.owner);
        // A changed export refuses clients as before.
        let before = self.places[index].as_ref();
        let same = before.filter(|before| before.export.info.name == export.info.name);
        let refuses = same.is_some_and(|before| before.refuses);
        self.places[index] =
            Some(ExportSlot { export, hidden: false, abandoned: false, refuses, sight });
        self.list();
    }

    /// Hides an export from new clients, or shows it again.
    pub fn hide(&mut self, id: ExportId, hidden: bool) {
        if let Some(place) = self.place_mut(id) {
            place.hidden = hidden;
            self.list();
        }
    }

    /// Gives an export up, which is hidden.
    pub fn abandon(&mut self, id: ExportId) {
        if let Some(place) = self.place_mut(id) {
            place.abandoned = true;
        }
    }

    /// Whether an export was given up.
    pub fn is_abandoned(&self, id: ExportId) -> bool {
        self.place(id).is_some_and(|place| place.abandoned)
    }

    /// Volumes whose exports were all given up.
    pub fn abandoned_volumes(&self) -> Vec<VolumeId> {
        let all = || self.places.iter().flatten();
        let of = |place: &ExportSlot| place.export.binding.volume;
        let given_up = all().filter(|place| place.abandoned).map(of);
        given_up
            .filter(|volume| all().all(|place| place.abandoned || of(place) != *volume))
            .collect()
    }

    /// Refuses new clients of an export, or takes them again.
    pub fn refuse(&mut self, id: ExportId, refuses: bool) {
        if let Some(place) = self.place_mut(id) {
            place.refuses = refuses;
            self.list();
        }
    }

    /// Whether an export refuses new clients.
    pub fn refuses(&self, id: ExportId) -> bool {
        self.place(id).is_some_and(|place| place.refuses)
    }

    /// Removes an export that is gone.
    pub fn take(&mut self, id: ExportId) {
        if let Some(place) = self.places.get_mut(usize::from(id.0)) {
            *place = None;
            self.list();
        }
    }

    pub fn set_ioprio(&mut self, id: ExportId, ioprio: Ioprio) {
        if let Some(place) = self.place_mut(id) {
            place.export.binding.ioprio = ioprio;
        }
    }

    /// Updates the sizes that new clients of a volume's exports are told: it has `size` bytes now.
    pub fn resize(&mut self, volume: VolumeId, size: u64) {
        let exports = self.places.iter_mut().flatten().map(|place| &mut place.export);
        for export in exports.filter(|export| export.binding.volume == volume) {
            export.volume_size = size;
            resize(&mut export.info, export.binding.range.size(size));
        }
        self.list();
    }

    /// A volume's name in messages: the names of its exports, as `ctl` takes them.
    pub fn name_of(&self, volume: VolumeId) -> String {
        let own = self.all().filter(|export| export.binding.volume == volume);
        let names: Vec<&str> = own.map(|export| shown_name(&export.info.name)).collect();
        match names[..] {
            [] => "a removed export".to_owned(),
            _ => format!("export {}", names.join(", ")),
        }
    }

    /// The device of an export.
    pub fn device_of(&self, id: ExportId) -> Option<DeviceId> {
        self.place(id).map(|place| place.export.binding.device)
    }

    /// The volume of an export.
    pub fn volume_of(&self, id: ExportId) -> Option<VolumeId> {
        self.place(id).map(|place| place.export.binding.volume)
    }

    /// The name of an export in messages.
    pub fn shown(&self, id: ExportId) -> &str {
        self.place(id).map_or("", |place| shown_name(&place.export.info.name))
    }

    /// The names of a device's exports in messages.
    pub fn names_on(&self, device: DeviceId) -> String {
        let own = self.all().filter(|export| export.binding.device == device);
        let names: Vec<&str> = own.map(|export| shown_name(&export.info.name)).collect();
        format!("export {}", names.join(", "))
    }

    /// Devices of the exports whose home is `shard`, one for each export.
    pub fn devices_of(&self, shard: ShardId) -> impl Iterator<Item = DeviceId> + Clone {
        let slots = self.places.iter().flatten().map(|place| &place.export);
        slots.filter(move |export| export.shard == shard).map(|export| export.binding.device)
    }

    /// All exports, hidden ones included.
    pub fn all(&self) -> impl Iterator<Item = &ServedExport> {
        self.places.iter().flatten().map(|place| &place.export)
    }

    fn place(&self, id: ExportId) -> Option<&ExportSlot> {
        self.places.get(usize::from(id.0))?.as_ref()
    }

    fn place_mut(&mut self, id: ExportId) -> Option<&mut ExportSlot> {
        self.places.get_mut(usize::from(id.0))?.as_mut()
    }

    fn list(&mut self) {
        let mut serving: Vec<&ExportSlot> =
            self.places.iter().flatten().filter(|place| !place.hidden).collect();
        serving.sort_by_key(|place| place.export.serial);
        self.ids = serving.iter().map(|place| place.export.binding.export).collect();
        let serving = serving.iter().map(|place| ExportInfo {
            refuses_clients: place.refuses,
            ..place.export.info.clone()
        });
        self.infos =
            serving.chain(self.absent.iter().map(|(absent, _)| absent.info.clone())).collect();
    }
}

impl ExportDirectory for ExportTable {
    fn exports(&self) -> &[ExportInfo] {
        &self.infos
    }

    fn identify(&self, admission: &mut Admission) {
        self.rules.identify(admission);
    }

    fn sees(&self, admission: &Admission, index: usize) -> bool {
        let sight = match self.ids.get(index) {
            Some(id) => self.place(*id).map(|place| &place.sight),
            None => self.absent.get(index - self.ids.len()).map(|(_, sight)| sight),
        };
        sight.is_some_and(|sight| self.rules.shows(sight, admission))
    }

    fn size_of(&self, export: ExportId) -> Option<u64> {
        self.open(export).map(|(_, info)| info.size)
    }
}

/// Replaces the size in a description, which may be followed by more words.
fn resize(info: &mut ExportInfo, size: u64) {
    let before = std::mem::replace(&mut info.size, size);
    let [before, now] = [before, size].map(|size| format!(", {}", display_size(size)));
    if let Some(at) = info.description.rfind(&before) {
        info.description.replace_range(at..at + before.len(), &now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::access::{
        AccessSpec, ClientOffer, ListenerKind, ListenerSpec, RuleListener,
    };
    use crate::listen::Address;
    use headworks_nbd::Offer;
    use headworks_nbd::tls::TlsOptions;

    fn export(name: &str, id: u16, serial: u64) -> ServedExport {
        ServedExport {
            info: ExportInfo { name: name.to_owned(), size: 1, ..ExportInfo::default() },
            binding: ExportBinding {
                volume: VolumeId(id),
                export: ExportId(id),
                ..ExportBinding::default()
            },
            shard: ShardId(id),
            config: headworks_core::ExportConfig::default(),
            owner: None,
            block_size: 512,
            limits: Default::default(),
            serial,
            volume_size: 1,
        }
    }

    fn table<const COUNT: usize>(exports: [ServedExport; COUNT]) -> ExportTable {
        ExportTable::new(exports.into_iter(), vec![Arc::new(AccessRules::open(1))])
    }

    fn names(exports: &ExportTable) -> String {
        let names: Vec<&str> = exports.exports().iter().map(|info| info.name.as_str()).collect();
        names.join(" ")
    }

    #[test]
    fn export_list_is_in_order_of_adding() {
        let mut exports = table([export("a", 0, 0), export("b", 1, 1)]);
        assert_eq!(
            (names(&exports), exports.chosen(0)),
            ("a b".into(), Some((ExportId(0), ShardId(0))))
        );
        exports.take(ExportId(0));
        assert_eq!(exports.chosen(0), Some((ExportId(1), ShardId(1))));
        exports.put(export("c", 0, 2));
        exports.put(export("d", 3, 3));
        assert_eq!(names(&exports), "b c d");
        assert_eq!(exports.chosen(1), Some((ExportId(0), ShardId(0))));
        assert_eq!(exports.chosen(3), None);
    }

    #[test]
    fn absent_exports_follow_the_list_and_have_no_id() {
        let mut exports = table([export("a", 0, 0)]);
        let absent = ExportInfo {
            name: "b".to_owned(),
            unavailable: Some("its image is missing".to_owned()),
            ..ExportInfo::default()
        };
        exports.set_absent(vec![UnavailableExport { info: absent, owner: None }]);
        exports.put(export("c", 1, 1));
        assert_eq!(names(&exports), "a c b");
        assert_eq!((exports.chosen(2), exports.all().count()), (None, 2));
        exports.set_absent(Vec::new());
        assert_eq!(names(&exports), "a c");
    }

    #[test]
    fn changed_export_refuses_clients_as_before_and_a_new_one_does_not() {
        let mut exports = table([export("a", 0, 0), export("b", 1, 1)]);
        let refusing = |exports: &ExportTable| -> Vec<bool> {
            exports.exports().iter().map(|info| info.refuses_clients).collect()
        };
        exports.refuse(ExportId(0), true);
        assert_eq!(refusing(&exports), [true, false]);
        exports.put(export("a", 0, 0));
        assert!(exports.refuses(ExportId(0)), "it is the same export");
        assert!(exports.open(ExportId(0)).is_some(), "clients that chose it before move in");
        exports.take(ExportId(0));
        exports.put(export("c", 0, 2));
        assert_eq!(refusing(&exports), [false, false]);
        exports.refuse(ExportId(1), true);
        exports.refuse(ExportId(1), false);
        assert_eq!(refusing(&exports), [false, false]);
    }

    #[test]
    fn hidden_export_cannot_be_opened_until_shown() {
        let mut exports = table([export("a", 0, 0), export("b", 1, 1)]);
        exports.hide(ExportId(0), true);
        assert_eq!(names(&exports), "b");
        assert!(exports.open(ExportId(0)).is_none() && exports.all().count() == 2);
        exports.hide(ExportId(0), false);
        assert_eq!(names(&exports), "a b");
        assert!(exports.open(ExportId(0)).is_some());
        exports.take(ExportId(0));
        assert!(exports.open(ExportId(0)).is_none() && exports.open(ExportId(9)).is_none());
    }

    #[test]
    fn resize_applies_to_all_exports_of_volume() {
        let mut both = export("b", 1, 1);
        both.info.description = "/x, 1 bytes, y, 1 bytes, read-only".to_owned();
        both.binding.volume = VolumeId(0);
        let mut exports = table([export("a", 0, 0), both, export("c", 2, 2)]);
        exports.resize(VolumeId(0), 7);
        let sizes: Vec<u64> = exports.exports().iter().map(|info| info.size).collect();
        assert_eq!(sizes, [7, 7, 1]);
        let (_, both) = exports.open(ExportId(1)).unwrap();
        assert_eq!(
            (both.size, both.description.as_str()),
            (7, "/x, 1 bytes, y, 7 bytes, read-only")
        );
    }

    /// Rules of listeners 0 and 1, each with its tenant and patterns.
    fn rules(offers: [(Option<&str>, &[&str]); 2]) -> Arc<AccessRules> {
        let spec = |(tenant, exports): (Option<&str>, &[&str])| ListenerSpec {
            kind: ListenerKind::Nbd,
            name: String::new(),
            address: Address::Tcp("127.0.0.1:0".parse().unwrap()),
            owner: None,
            exports: exports.iter().map(|name| (*name).to_owned()).collect(),
            tenant: tenant.map(|name| TenantName::parse(name).unwrap()),
            tls: TlsOptions::default(),
        };
        let specs = offers.map(spec);
        let listeners: Vec<RuleListener<'_>> = (0..)
            .zip(&specs)
            .map(|(number, spec)| RuleListener { number, spec: Some(spec), verifies: false })
            .collect();
        let none = std::iter::empty();
        Arc::new(AccessRules::new(&listeners, &AccessSpec::default(), none))
    }

    /// The names that a client of each of the two listeners sees.
    fn seen(exports: &ExportTable) -> [String; 2] {
        [0, 1].map(|listener| {
            let mut admission = Admission::new(listener);
            let offer = ClientOffer::new(exports, &mut admission);
            let all = offer.exports().iter().enumerate();
            let seen = all.filter(|(index, _)| offer.sees(*index));
            let names: Vec<&str> = seen.map(|(_, info)| info.name.as_str()).collect();
            names.join(" ")
        })
    }

    #[test]
    fn each_listener_sees_its_exports_through_every_change() {
        let (acme, globex) = (TenantName::parse("acme").unwrap(), TenantName::parse("globex"));
        let owned = |name, id, owner| ServedExport { owner, ..export(name, id, u64::from(id)) };
        let all = [owned("a", 0, Some(acme)), owned("b", 1, globex.ok()), owned("shared", 2, None)];
        let both = rules([(Some("acme"), &["shared"]), (Some("globex"), &["s*"])]);
        let mut exports = ExportTable::new(all.into_iter(), vec![both]);
        assert_eq!(seen(&exports), ["a shared", "b shared"]);
        exports.put(owned("a-2", 3, Some(acme)));
        exports.put(owned("sideways", 4, None));
        assert_eq!(seen(&exports), ["a shared a-2", "b shared sideways"]);
        exports.hide(ExportId(3), true);
        exports.set_owner(ExportId(1), Some(acme));
        assert_eq!(seen(&exports), ["a b shared", "shared sideways"]);
        exports.hide(ExportId(3), false);
        exports.set_owner(ExportId(1), None);
        assert_eq!(seen(&exports), ["a shared a-2", "shared sideways"]);
        // Another export gets the id, and the list another order.
        exports.take(ExportId(0));
        exports.put(owned("new", 0, None));
        assert_eq!(seen(&exports), ["shared a-2", "shared sideways"]);
        let absent = |name: &str, owner| UnavailableExport {
            info: ExportInfo { name: name.to_owned(), ..ExportInfo::default() },
            owner,
        };
        exports.set_absent(vec![absent("gone", Some(acme)), absent("s-gone", None)]);
        assert_eq!(seen(&exports), ["shared a-2 gone", "shared sideways s-gone"]);
        exports.set_access(vec![rules([(None, &["new"]), (None, &[])])]);
        assert_eq!(seen(&exports), ["new", "new b shared a-2 sideways gone s-gone"]);
    }
}
