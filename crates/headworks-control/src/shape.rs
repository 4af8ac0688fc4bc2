//! What the reference says of the types of requests and answers: their kind, and of structs the fields with their documentation.

use std::collections::BTreeMap;

use serde_json::Value;

/// The kind of a value, as the reference names it.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Any value that the documentation describes.
    Any,
    /// A string.
    Text,
    /// A number, with or without a fraction.
    Number,
    /// `true` or `false`.
    Boolean,
    /// Two numbers.
    Pair,
    /// A list of values of one kind.
    List(&'static Kind),
    /// An object whose names depend on the server: values of one kind by name.
    ByName(&'static Kind),
    /// A value, or null.
    Maybe(&'static Kind),
    /// A struct.
    Record(&'static Record),
}

/// A struct of an answer.
#[derive(Debug)]
pub struct Record {
    /// Name of the struct.
    pub name: &'static str,
    /// Documentation of the struct.
    pub about: &'static str,
    /// Its fields, in the order of their declaration.
    pub fields: &'static [Field],
}

/// A field of a [`Record`].
#[derive(Debug)]
pub struct Field {
    /// Name of the field in JSON.
    pub name: &'static str,
    /// Kind of its value.
    pub kind: Kind,
    /// Its documentation: meaning, unit, range.
    pub about: &'static str,
}

/// A type that the reference can describe.
pub trait Shape {
    /// Its kind.
    const KIND: Kind;
}

macro_rules! shapes {
    ($($kind:ident: $($type:ty)*;)*) => { $($(
        impl Shape for $type {
            const KIND: Kind = Kind::$kind;
        }
    )*)* };
}

shapes! {
    Any: Value;
    Text: String;
    Number: u16 u32 u64 usize f64;
    Boolean: bool;
    Pair: (f64, u64);
}

impl<T: Shape> Shape for Vec<T> {
    const KIND: Kind = Kind::List(&T::KIND);
}

impl<T: Shape> Shape for Option<T> {
    const KIND: Kind = Kind::Maybe(&T::KIND);
}

impl<T: Shape> Shape for BTreeMap<String, T> {
    const KIND: Kind = Kind::ByName(&T::KIND);
}

/// Counters that are added up over the threads of a server.
pub trait Sum {
    /// Adds the counters of another one.
    fn add(&mut self, other: &Self);

    /// The sum; none of none.
    fn total(all: impl Iterator<Item = Self>) -> Option<Self>
    where
        Self: Sized,
    {
        all.reduce(|mut sum, one| {
            sum.add(&one);
            sum
        })
    }
}

impl Sum for u64 {
    fn add(&mut self, other: &Self) {
        *self = self.saturating_add(*other);
    }
}

impl Sum for Vec<u64> {
    fn add(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(one, other)| one.add(other));
    }
}

/// Declares the structs of answers: their documentation is that of the reference.
macro_rules! records {
    ($(
        $(#[doc = $about:literal])* $name:ident {
            $($(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])? $field:ident: $type:ty,)*
        }
    )*) => { $(
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[doc = $doc])* $(#[serde($($serde)*)])? pub $field: $type,)*
        }

        impl $name {
            /// The names of its fields, in the order of their declaration.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];
        }

        impl $crate::shape::Shape for $name {
            const KIND: $crate::shape::Kind = $crate::shape::Kind::Record(&$crate::shape::Record {
                name: stringify!($name),
                about: concat!($($about),*),
                fields: &[$($crate::shape::Field {
                    name: stringify!($field),
                    kind: <$type as $crate::shape::Shape>::KIND,
                    about: concat!($($doc),*),
                }),*],
            });
        }
    )* };
}

/// Declares structs of counters, which can be added up.
macro_rules! counters {
    ($(
        $(#[doc = $about:literal])* $name:ident {
            $($(#[doc = $doc:literal])* $field:ident: $type:ty,)*
        }
    )*) => {
        $crate::shape::records! { $(
            $(#[doc = $about])* $name { $($(#[doc = $doc])* $field: $type,)* }
        )* }

        $(impl $crate::shape::Sum for $name {
            fn add(&mut self, other: &Self) {
                $($crate::shape::Sum::add(&mut self.$field, &other.$field);)*
            }
        })*
    };
}

pub(crate) use {counters, records};
